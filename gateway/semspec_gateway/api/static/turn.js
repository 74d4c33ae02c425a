// One question with its answer: the message, the answer with its segments in the margin, notices, decisions, and what can be done.

import { element } from "./dom.js";
import { meters, numbersLine, spreadTable, timeline } from "./figures.js";
import { parted } from "./generation.js";
import { notices, parametersLine } from "./notes.js";
import { kind, Prose } from "./prose.js";

/** A reasoning of more segments is folded once it has ended. */
const MOST_STEPS = 16;

export class Turn {
  /** An answer that is written now, or was read from the store with its trace. */
  static of(generation) {
    const turn = new Turn(generation.prompt, "", generation.id);
    turn.add(generation, "Answer");
    return turn;
  }

  /** One of which only the texts are known, and the generation's id if this browser asked it. */
  constructor(question, answer = "", id = null) {
    Object.assign(this, { question, answer, knownId: id, session: null });
    this.panes = [];
    /** The answer as long as no more than its text is known. */
    this.plain = new Prose(element("div", { class: "answer prose" }));
    /** What the answer and the target alone took with each seed. */
    this.pairs = [];
    this.build();
    this.render();
  }

  build() {
    this.numbers = element("span", { class: "numbers-line" });
    this.figures = element("div", { class: "figures" });
    this.parameters = element("p", { class: "hint" });
    this.decisions = element("details", { class: "decisions" }, element("summary", {}, "Decisions", this.numbers), this.figures, this.parameters);
    this.replies = element("div", { class: "panes replies" }, this.plain.node);
    this.notices = element("ul", { class: "notices" });
    this.resume = tool("resume", "Resume", "primary");
    this.traced = [tool("link", "Copy link"), tool("export", "Export trace")];
    this.tools = element("div", { class: "tools" }, this.resume, tool("copy", "Copy"), tool("regenerate", "Regenerate"), ...this.traced);
    const asked = element("div", { class: "asked" }, element("p", {}, this.question), element("div", { class: "tools" }, tool("edit", "Edit"), tool("copy-question", "Copy")));
    asked.hidden = this.question === "";
    const said = element("div", { class: "said" }, this.replies, this.notices, this.decisions, this.tools);
    this.element = element("li", { class: "turn" }, asked, said);
  }

  /** Show another generation beside those there are. */
  add(generation, title) {
    if (this.own === null) this.replies.replaceChildren();
    const pane = new Pane(generation, title);
    this.panes.push(pane);
    this.replies.append(pane.element);
    this.render();
  }

  /** The generation that was asked for, the first of the panes. */
  get own() {
    return this.panes[0]?.generation ?? null;
  }

  get other() {
    return this.panes[1]?.generation ?? null;
  }

  get id() {
    return this.own?.id ?? this.knownId;
  }

  get said() {
    return this.own?.said ?? this.answer;
  }

  /** Whether later questions follow it: a turn that did not finish is part of no conversation. */
  get isKept() {
    return this.own === null || this.own.status === "finished";
  }

  get messages() {
    const asked = this.question ? [{ role: "user", content: this.question }] : [];
    return this.isKept ? [...asked, { role: "assistant", content: this.said }] : [];
  }

  render() {
    const { own } = this;
    this.decisions.hidden = this.id === null && own === null;
    this.tools.hidden = own?.isOpen ?? false;
    for (const button of this.traced) button.hidden = this.id === null;
    this.resume.hidden = !own?.isResumable;
    if (own === null) {
      this.plain.update(this.answer.trim());
      return;
    }
    for (const pane of this.panes) pane.render();
    this.element.classList.toggle("compared", this.panes.length > 1);
    this.notices.replaceChildren(...notices(own));
    this.parameters.replaceChildren(...(own.id ? [parametersLine(own)] : []));
    this.tick();
  }

  /** The numbers alone, which also grow between two events. */
  tick() {
    const generations = this.panes.map((pane) => pane.generation);
    this.numbers.textContent = numbersLine(this.own);
    if (this.decisions.open) this.figures.replaceChildren(meters(this.own, this.other, this.pairs), timeline(generations), spreadTable(this.pairs));
  }
}

const tool = (action, words, kind = "plain") => element("button", { type: "button", class: kind, "data-action": action }, words);

/** One generation: its reasoning, which folds, and its answer. */
class Pane {
  constructor(generation, title) {
    this.generation = generation;
    this.reasoning = new Prose(element("div", { class: "prose" }));
    this.answer = new Prose(element("div", { class: "answer prose" }));
    this.fold = element("details", { class: "reasoning", open: true }, element("summary", {}, "Reasoning"), this.reasoning.node);
    this.hasEnded = false;
    this.element = element("section", { class: "pane" }, element("h3", {}, title), this.fold, this.answer.node);
  }

  render() {
    const { generation } = this;
    const segments = generation.segments.map((segment) => ({ ...segment, kind: segment.record ? kind(segment.record) : "flight" }));
    const text = segments.map((segment) => segment.text).join("");
    const numSure = segments.findLast((segment) => segment.isSure)?.end ?? 0;
    const { reasoning, answer, answerAt } = parted(text);
    const isReasoning = answer === null && generation.isParted;
    const show = (prose, part, start) => {
      const placed = segments.map((segment) => ({ ...segment, start: segment.start - start, end: segment.end - start }));
      prose.update(part, { segments: placed, numSure: numSure - start, isOpen: generation.isOpen, generation });
    };
    const hasReasoning = (isReasoning || answer !== null) && reasoning.trim() !== "";
    this.fold.hidden = !hasReasoning;
    show(this.reasoning, hasReasoning ? reasoning : "", 0);
    show(this.answer, answer ?? (isReasoning ? "" : reasoning), answerAt);
    if (!generation.isOpen && !this.hasEnded) this.fold.open = this.reasoning.numSegments <= MOST_STEPS;
    this.hasEnded = !generation.isOpen;
  }

  /** The record and generation that a mark in the margin stands for. */
  behind(line) {
    return this.answer.behind.get(line) ?? this.reasoning.behind.get(line);
  }
}
