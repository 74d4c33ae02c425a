// The message that is written and the settings of its request, which follow the pair that is served.

import { byId, element } from "./dom.js";
import { share, times } from "./format.js";

const BUNDLED = "semspec-demo";
// Of the kind that the bundled pair learned, one plainly worded and one widely.
const EXAMPLES_OF_BUNDLED = [
  "Style 1. Ivy passes to Finn. Finn passes to Hugo. Kate passes to Ivy. Leo passes to Bea. Fay " +
    "passes to Kate. Bea passes to Hana. Hana passes to Fay. Hugo passes to Leo. Cards: Hana 65, Hugo " +
    "22, Finn 77, Leo 49, Ivy 55, Bea 88, Kate 37, Fay 19. The ball starts with Hugo. Round 1: 1 pass. " +
    "Round 2: 4 passes. Round 3: 2 passes. Round 4: 1 pass. Round 5: 1 pass. Round 6: 1 pass. Which " +
    "card has the ball at the end?",
  "Style 3. Hana passes to June. June passes to Jack. Jack passes to Bob. Karl passes to Hana. Abel " +
    "passes to Karl. Fay passes to Ivan. Bob passes to Fay. Ivan passes to Abel. Cards: Ivan 54, Hana " +
    "35, Jack 48, Fay 28, Bob 19, Abel 99, Karl 79, June 63. The ball starts with Abel. Round 1: 1 " +
    "pass. Round 2: 4 passes. Round 3: 1 pass. Round 4: 1 pass. Round 5: 2 passes. Round 6: 1 pass. " +
    "Which card has the ball at the end?",
];
const EXAMPLES = [
  "A train leaves at 9:40 and arrives at 12:05. How many minutes does it travel? Put the number in \\boxed{}.",
  "Is 91 a prime number? Explain in two sentences.",
];
const KNOWN_BY_BUNDLED =
  "The bundled pair knows one kind of question, a ball that is passed on in a ring of eight or nine, in the words of " +
  "the examples. The first words, Style 0 to 3, set how far its own wording spreads.";

const ABOUT = {
  semantic: "Drafted segments are accepted by what they mean.",
  likelihood: "Drafted segments are accepted by the target’s probabilities over them.",
  "token-level": "The draft proposes tokens, the target verifies them. Lossless.",
  retrieval: "A datastore proposes tokens, the target verifies them. Lossless.",
  target: "The large model alone.",
  draft: "The small model alone.",
};

const STRICTNESS_HINT = "How like the target a draft must be. The default is the rule this pair is served with.";
/** Strategies with a threshold that a curve gives for a strictness; the default may be one. */
const STRICT = ["", "semantic", "likelihood"];

/** Field of the page that a refusal's `param`, or else its code, is about. */
const FIELDS = {
  invalid_api_key: "key",
  messages: "prompt",
  model: "model",
  seed: "seed",
  temperature: "temperature",
  max_tokens: "max_tokens",
  "semspec.strategy": "model",
  "semspec.gamma": "gamma",
  "semspec.strictness": "strictness",
};

export class Form {
  constructor() {
    this.settings = byId("settings");
    this.strictness = null;
    this.blamed = null;
    byId("open-settings").addEventListener("click", () => this.settings.showModal());
    this.settings.addEventListener("change", () => this.showUsed());
    this.settings.addEventListener("click", (event) => event.target === this.settings && this.settings.close());
    byId("model").addEventListener("change", () => this.showStrategy());
    byId("strictness").addEventListener("input", (event) => this.setStrictness(event.target.valueAsNumber));
    byId("strictness-default").addEventListener("click", () => {
      this.setStrictness(null);
      byId("strictness").focus();
    });
    this.setStrictness(null);
    this.expect(null);
  }

  /** What the served pair supports, and what it lacks for each other strategy. */
  setModels({ data, unsupported = {} }) {
    const names = data.map((model) => model.id);
    const strategies = names.map((name) => name.split(":")[1]).filter(Boolean);
    const options = names.map((name) => new Option(name.includes(":") ? name.split(":")[1] : `${name} (default)`, name));
    byId("model").replaceChildren(...options);
    const missing = Object.entries(unsupported).map(([name, lacks]) => `${name} (${lacks})`);
    byId("unsupported").textContent = missing.length ? `This pair does not support: ${missing.join(", ")}.` : "";
    byId("judged").hidden = !strategies.includes("semantic");
    byId("known").textContent = this.isBundled ? KNOWN_BY_BUNDLED : `${names[0]} is served. It supports ${strategies.join(", ")}.`;
    byId("examples").replaceChildren(...this.examples.map((text) => this.example(text)));
    this.showStrategy();
  }

  get isBundled() {
    return this.model?.split(":")[0] === BUNDLED;
  }

  get examples() {
    return this.isBundled ? EXAMPLES_OF_BUNDLED : EXAMPLES;
  }

  example(text) {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      this.prompt = text;
      byId("prompt").focus();
    });
    return element("li", {}, button);
  }

  /** Put the first example in, if nothing is written yet. */
  prefill() {
    if (this.prompt === "") this.prompt = this.examples[0];
  }

  showStrategy() {
    const strategy = this.model?.split(":")[1] ?? "";
    byId("model-hint").textContent = ABOUT[strategy] ?? "The strategy that this server uses by default.";
    const other = this.targetModel;
    byId("compare").disabled = other === null || other === this.model;
    byId("strictness").disabled = !STRICT.includes(strategy);
    this.showUsed();
  }

  /** What a request has that is not the default, beside the button. */
  showUsed() {
    const numbers = ["gamma", "temperature", "seed", "max_tokens"].filter((name) => byId(name).value);
    const parts = [
      this.model ?? "",
      this.usedStrictness === null ? "" : `strictness ${this.strictness.toFixed(2)}`,
      ...numbers.map((name) => `${name.replace("_", " ")} ${byId(name).value}`),
      this.system ? "system prompt" : "",
      this.compares ? "compared with the target" : "",
    ];
    byId("used").textContent = parts.filter(Boolean).join(" · ");
  }

  /** null is the server's own rule. */
  setStrictness(value) {
    this.strictness = value;
    const words = value === null ? "default" : value.toFixed(2);
    byId("strictness-value").textContent = words;
    byId("strictness").setAttribute("aria-valuetext", words);
    byId("strictness").classList.toggle("unset", value === null);
    byId("strictness-default").hidden = value === null;
    this.showUsed();
  }

  get usedStrictness() {
    return byId("strictness").disabled ? null : this.strictness;
  }

  /** What the probes' report expects of the rule just used. */
  expect(expected) {
    const parts = expected
      ? [
          `${share(expected.acceptance)} of drafts accepted`,
          `${share(expected.wrong_accepted)} of the wrong ones`,
          `${times(expected.speed_up)} as fast`,
        ].filter((part) => !part.startsWith("–"))
      : [];
    byId("strictness-hint").textContent = parts.length ? `Expected of the last setting: ${parts.join(", ")}.` : STRICTNESS_HINT;
  }

  /** Undefined before the server has named its models: a request without one is answered by the default. */
  get model() {
    return byId("model").value || undefined;
  }

  /** The target alone under its own name, if it is served. */
  get targetModel() {
    const name = `${this.model?.split(":")[0]}:target`;
    return [...byId("model").options].some((option) => option.value === name) ? name : null;
  }

  get compares() {
    return byId("compare").checked && !byId("compare").disabled;
  }

  /** How many seeds are compared. */
  get numSeeds() {
    const { min, max, valueAsNumber } = byId("seeds");
    return Number.isNaN(valueAsNumber) ? 1 : Math.min(Number(max), Math.max(Number(min), Math.trunc(valueAsNumber)));
  }

  get prompt() {
    return byId("prompt").value;
  }

  set prompt(text) {
    byId("prompt").value = text;
  }

  get system() {
    return byId("system").value.trim();
  }

  set system(text) {
    byId("system").value = text;
    this.showUsed();
  }

  /** The body of a request, in a session or in none. */
  body(messages, session = null) {
    const body = { model: this.model, messages, stream: true };
    for (const name of ["temperature", "seed", "max_tokens"]) setNumber(body, name);
    body.semspec = { trace: true };
    setNumber(body.semspec, "gamma");
    if (session !== null) body.semspec.session = session;
    if (this.usedStrictness !== null) body.semspec.strictness = this.usedStrictness;
    return body;
  }

  /** Mark the field that a refusal is about, and no other. */
  blame(param) {
    for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    const field = byId(FIELDS[param] ?? "");
    field?.setAttribute("aria-invalid", "true");
    /** The setting at fault, if it is one. */
    this.blamed = field?.closest("dialog") ? field : null;
  }

  setRunning(isRunning) {
    byId("send").textContent = isRunning ? "Stop" : "Send"; // one place, so that the focus stays where it is
    byId("send").classList.toggle("primary", !isRunning);
  }
}

function setNumber(body, name) {
  const value = byId(name).valueAsNumber;
  if (!Number.isNaN(value)) body[name] = value;
}
