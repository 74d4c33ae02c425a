// The request as the form has it.

import { byId } from "./dom.js";
import { share, times } from "./format.js";

// One of each kind of question that the bundled pair learned.
const EXAMPLES = [
  "Ben has coins: 52. Day 1: Ben finds 9 coins. Day 2: Ben naps. Day 3: Ben sells 4 coins. " +
    "Day 4: Ben gets 6 coins. Day 5: Ben reads. Day 6: Ben loses 7 coins. How many coins does Ben have now?",
  "Four boxes hold digits: a9 b1 c5 d8. Move 1: shift on. Move 2: shift on. Move 3: take 3 from a. " +
    "Move 4: swap a and c. Move 5: swap b and d. Move 6: add 1 to d. Which number do the boxes show now?",
];
export const BUNDLED = "semspec-demo";

const ABOUT = {
  "": "The strategy this server has as its default.",
  semantic: "Drafted segments are accepted by what they mean.",
  likelihood: "Drafted segments are accepted by the target’s probabilities over them.",
  "token-level": "The draft proposes tokens, the target verifies them. Lossless.",
  retrieval: "A datastore proposes tokens, the target verifies them. Lossless.",
  "spec-reason": "The target scores each drafted step from 0 to 9.",
  "spec-thinking": "The draft leads; the target takes over at words of doubt.",
  target: "The large model alone.",
  draft: "The small model alone.",
};

const STRICTNESS_HINT = "How like the target a draft must be. The default is the rule this pair is served with.";

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
    this.form = byId("form");
    this.strictness = null;
    this.prompt = EXAMPLES[0];
    byId("example").addEventListener("click", () => {
      this.prompt = EXAMPLES[(EXAMPLES.indexOf(this.prompt) + 1) % EXAMPLES.length];
      byId("prompt").focus();
    });
    byId("model").addEventListener("change", () => this.showStrategy());
    byId("strictness").addEventListener("input", (event) => this.setStrictness(event.target.valueAsNumber));
    byId("strictness-default").addEventListener("click", () => {
      this.setStrictness(null);
      byId("strictness").focus();
    });
    byId("prompt").addEventListener("keydown", (event) => this.sendByKey(event));
    this.setStrictness(null);
    this.expect(null);
  }

  sendByKey(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.form.requestSubmit();
  }

  setModels(names) {
    const select = byId("model");
    select.replaceChildren(...names.map((name) => new Option(name.includes(":") ? name.split(":")[1] : `${name} (default)`, name)));
    this.showStrategy();
  }

  showStrategy() {
    const strategy = this.model.split(":")[1] ?? "";
    byId("model-hint").textContent = ABOUT[strategy] ?? "";
    byId("bundled").hidden = this.model.split(":")[0] !== BUNDLED;
    const other = this.targetModel;
    byId("compare").disabled = other === null || other === this.model;
  }

  /** null is the server's own rule. */
  setStrictness(value) {
    this.strictness = value;
    const words = value === null ? "default" : value.toFixed(2);
    byId("strictness-value").textContent = words;
    byId("strictness").setAttribute("aria-valuetext", words);
    byId("strictness").classList.toggle("unset", value === null);
    byId("strictness-default").hidden = value === null;
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

  get model() {
    return byId("model").value;
  }

  /** The target alone under its own name, if it is served. */
  get targetModel() {
    const name = `${this.model.split(":")[0]}:target`;
    return [...byId("model").options].some((option) => option.value === name) ? name : null;
  }

  get compares() {
    return byId("compare").checked && !byId("compare").disabled;
  }

  get converses() {
    return byId("converse").checked;
  }

  set converses(does) {
    byId("converse").checked = does;
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

  /** The body of a request, in a session or in none. */
  body(session = null) {
    const body = { model: this.model, messages: [{ role: "user", content: this.prompt }], stream: true };
    for (const name of ["temperature", "seed", "max_tokens"]) setNumber(body, name);
    body.semspec = { trace: true };
    setNumber(body.semspec, "gamma");
    if (session !== null) body.semspec.session = session;
    if (this.strictness !== null) body.semspec.strictness = this.strictness;
    return body;
  }

  /** Mark the field that a refusal is about, and no other. */
  blame(param) {
    for (const field of this.form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    byId(FIELDS[param] ?? "")?.setAttribute("aria-invalid", "true");
  }

  setRunning(isRunning) {
    // Not `disabled`, which would throw the keyboard's focus away.
    byId("send").setAttribute("aria-disabled", String(isRunning));
    byId("stop").setAttribute("aria-disabled", String(!isRunning));
  }
}

function setNumber(body, name) {
  const value = byId(name).valueAsNumber;
  if (!Number.isNaN(value)) body[name] = value;
}
