// A generation's segments in reading order: what each is, its text, and the draft it replaced.

import { element, mark, unseen } from "./dom.js";
import { count, measure } from "./format.js";
import { parted } from "./generation.js";
import { describe } from "./inspector.js";
import { markdown } from "./markdown.js";

/** A finished reasoning of more steps is folded to the first and the last of them. */
const MOST_STEPS = 16;
const NUM_SHOWN = 4; // at either end

const KINDS = {
  accepted: { sign: "✓", word: "accepted" },
  target: { sign: "✎", word: "target" },
  draft: { sign: "–", word: "draft" },
  flight: { sign: "◌", word: "in flight" },
};

/** How a segment is shown: by verdict, and by writer where nothing was judged. */
export function kind(record) {
  if (record.verdict === "accepted") return "accepted";
  return record.writer === "target" ? "target" : "draft";
}

/** The list of one generation. Elements already shown stay the same ones, so that focus and open folds are kept. */
export class Segments {
  constructor(label, prefix) {
    this.list = element("ol", { class: "segments", "aria-label": label });
    this.prefix = prefix;
    this.shown = [];
    this.drafts = [];
    this.more = null;
    this.isUnfolded = false;
    /** The record and generation behind each element. */
    this.behind = new WeakMap();
  }

  update(generation) {
    for (const draft of this.drafts) draft.remove();
    let answering = false;
    for (const record of generation.kept) {
      this.place(record, generation, answering);
      answering ||= parted(record.text).answer !== null;
    }
    this.drafts = [...generation.inFlight.values()].map((segment) => inFlight(segment, answering));
    if (generation.openText) this.drafts = [written(generation.openText, answering)];
    this.list.append(...this.drafts);
    this.fold(generation);
  }

  /** Hide the middle of a long reasoning that has ended, behind a button. */
  fold(generation) {
    const answerAt = generation.records.findIndex((record) => record && parted(record.text).answer !== null);
    const steps = this.shown.slice(0, answerAt < 0 ? undefined : answerAt);
    const isFolded = !generation.isOpen && !this.isUnfolded && steps.length > MOST_STEPS;
    const folded = isFolded ? steps.slice(NUM_SHOWN, -NUM_SHOWN) : [];
    for (const item of this.shown) item.hidden = folded.includes(item);
    this.more?.remove();
    this.more = folded.length ? this.unfolder(folded.length, generation) : null;
    if (this.more) steps[NUM_SHOWN - 1].after(this.more);
  }

  unfolder(number, generation) {
    const button = element("button", { type: "button", class: "plain" }, `Show ${number} more steps`);
    button.addEventListener("click", () => {
      const next = this.more.nextElementSibling;
      this.isUnfolded = true;
      this.fold(generation);
      next.focus();
    });
    return element("li", { class: "more" }, button);
  }

  place(record, generation, answering) {
    const earlier = this.shown[record.index];
    if (earlier && this.behind.get(earlier).record.text === record.text) {
      this.behind.set(earlier, { record, generation });
      earlier.lastElementChild.textContent = describe(record, generation.parameters); // by now the rule may be known
      return;
    }
    const item = this.item(record, generation, answering);
    if (earlier) earlier.replaceWith(item);
    else this.list.append(item);
    this.shown[record.index] = item;
    this.behind.set(item, { record, generation });
  }

  item(record, generation, answering) {
    const about = `${this.prefix}-${record.index}-about`;
    const kindOf = kind(record);
    return element(
      "li",
      { class: `segment ${kindOf}`, tabindex: record.index === 0 ? 0 : -1, "data-index": record.index, "aria-describedby": about },
      mark(KINDS[kindOf].sign),
      element("div", { class: "words" }, ...texts(record.text, answering), refused(record.rejected)),
      element("p", { class: "tag" }, KINDS[kindOf].word, element("span", {}, tag(record))),
      element("p", { id: about, hidden: true }, describe(record, generation.parameters)),
    );
  }
}

function inFlight(segment, answering) {
  return element(
    "li",
    { class: "segment flight" },
    mark(KINDS.flight.sign),
    element("div", { class: "words" }, ...texts(segment.text, answering)),
    element("p", { class: "tag" }, KINDS.flight.word, element("span", {}, count(segment.num_tokens ?? 0, "token"))),
  );
}

function written(text, answering) {
  return element(
    "li",
    { class: "segment target" },
    mark(KINDS.target.sign),
    element("div", { class: "words" }, ...texts(text, answering)),
    element("p", { class: "tag" }, KINDS.target.word, element("span", {}, "writing")),
  );
}

function texts(text, answering) {
  if (answering) return [answerText(text)];
  const { reasoning, answer } = parted(text);
  const parts = reasoning.trim() ? [element("div", { class: "reasoning" }, ...markdown(reasoning.trim()))] : [];
  if (answer?.trim()) parts.push(answerText(answer));
  return parts.length ? parts : [element("p", { class: "reasoning void" }, "(no text)")];
}

/** The answer itself stands below the segments in full. */
const answerText = (text) => element("div", { class: "of-answer" }, unseen("Answer: "), ...markdown(text.trim()));

function refused(draft) {
  if (!draft) return null;
  return element(
    "details",
    { class: "refused" },
    element("summary", {}, mark("✗"), `refused draft, ${count(draft.num_tokens ?? 0, "token")}`),
    element("p", {}, draft.text.trim()),
  );
}

function tag(record) {
  if (record.target_probability !== null && record.target_probability !== undefined) {
    return `${record.rejected ? "draft’s " : ""}p/q ${record.ratio === null ? "∞" : measure(record.ratio)}`;
  }
  return typeof record.score === "number" ? `score ${record.score.toFixed(1)}` : count(record.num_tokens, "token");
}
