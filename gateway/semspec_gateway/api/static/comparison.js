// The target alone beside the answer: with the same seed, and, since one run says little, with further ones.

import { Generation } from "./generation.js";

/** What both took with each seed, as `ask` asks one after the other; ends with the first that does not finish. Which of
 * the two is asked first alternates, since the second finds the prompt in the cache. */
export async function* pairs({ body, own, alone, numSeeds }, ask) {
  const bodies = (seed) => {
    const { semspec: _, ...plain } = body;
    return [{ ...body, seed }, { ...plain, model: alone.model, seed, semspec: { trace: true } }];
  };
  if (!(await ask(alone, bodies(own.seed)[1]))) return;
  yield pairOf(own, alone);
  for (let number = 1; number < numSeeds; number++) {
    const both = [new Generation(body.model, own.prompt), new Generation(alone.model, own.prompt)];
    const asked = bodies(own.seed + number);
    for (const index of number % 2 ? [1, 0] : [0, 1]) if (!(await ask(both[index], asked[index]))) return;
    yield pairOf(...both);
  }
}

/** What two generations took with one seed; `same`: whether their answers are equal, null if one has none. */
function pairOf(own, alone) {
  const same = own.answer === null || alone.answer === null ? null : own.answer === alone.answer;
  return { seed: own.seed, own_ms: own.latencyMs, target_ms: alone.latencyMs, speed_up: alone.latencyMs / own.latencyMs, same };
}

/** Least, median and greatest number. */
export function spread(numbers) {
  const sorted = [...numbers].sort((one, two) => one - two);
  const half = (sorted.length - 1) / 2;
  return { least: sorted[0], middle: (sorted[Math.floor(half)] + sorted[Math.ceil(half)]) / 2, most: sorted.at(-1) };
}
