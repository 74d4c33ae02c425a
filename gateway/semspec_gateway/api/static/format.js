// Numbers as they are read, not parted from their unit; a dash stands for what is not known.

const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export const share = (value) => (known(value) ? `${Math.round(value * 100)}%` : NONE);

export const seconds = (ms) => (known(ms) ? `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)}\u00a0s` : NONE);

export const rate = (value) => (known(value) ? value.toFixed(value < 10 ? 1 : 0) : NONE);

export const times = (value) => (known(value) ? `${value.toFixed(value < 10 ? 2 : 1)}×` : NONE);

export const milliseconds = (ms) => (ms >= 1000 ? seconds(ms) : known(ms) ? `${ms.toFixed(ms < 10 ? 1 : 0)}\u00a0ms` : NONE);

/** A probability or a ratio of two: three places, or a power of ten where these would be noughts. */
export function measure(value) {
  if (!known(value)) return NONE;
  if (value === 0 || Math.abs(value) >= 0.001) return value.toFixed(value < 10 ? 3 : 1);
  const [factor, power] = value.toExponential(0).split("e-");
  return `${factor} × 10⁻${[...power].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}

export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
