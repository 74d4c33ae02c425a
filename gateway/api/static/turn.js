// One question with its answer: the message, the decisions folded out above the answer, notices, and what can be done.

import { element } from "./dom.js";
import { meters, numbersLine, spreadTable, timeline } from "./figures.js";
import { markdown } from "./markdown.js";
import { notices, parametersLine } from "./notes.js";
import { Segments } from "./segments.js";

let count = 0;

export class Turn {
  /** An answer that is written now, or was read from the store with its trace. */
  static of(generation) {
    const turn = new Turn(generation.prompt, "", generation.id);
    turn.add(generation, "Answer");
    turn.decisions.open = true;
    return turn;
  }

  /** One of which only the texts are known, and the generation's id if this browser asked it. */
  constructor(question, answer = "", id = null) {
    Object.assign(this, { question, answer, knownId: id, number: count++, session: null });
    this.panes = [];
    /** What the answer and the target alone took with each seed. */
    this.pairs = [];
    this.build();
    this.render();
  }

  build() {
    this.numbers = element("span", { class: "numbers-line" });
    this.figures = element("div", { class: "figures" });
    this.lists = element("div", { class: "panes" });
    this.parameters = element("p", { class: "hint" });
    this.decisions = element("details", { class: "decisions" }, element("summary", {}, "Decisions", this.numbers), this.figures, this.lists, this.parameters);
    this.replies = element("div", { class: "panes replies" });
    this.notices = element("ul", { class: "notices" });
    this.resume = tool("resume", "Resume", "primary");
    this.traced = [tool("link", "Copy link"), tool("export", "Export trace")];
    this.tools = element("div", { class: "tools" }, this.resume, tool("copy", "Copy"), tool("regenerate", "Regenerate"), ...this.traced);
    const asked = element("div", { class: "asked" }, element("p", {}, this.question), element("div", { class: "tools" }, tool("edit", "Edit"), tool("copy-question", "Copy")));
    asked.hidden = this.question === "";
    const said = element("div", { class: "said" }, this.decisions, this.replies, this.notices, this.tools);
    this.element = element("li", { class: "turn" }, asked, said);
  }

  /** Show another generation beside those there are. */
  add(generation, title) {
    if (this.own === null) this.replies.replaceChildren();
    const segments = new Segments(title, `${this.number}-${this.panes.length}`);
    const reply = element("div", { class: "answer words" });
    this.panes.push({ generation, segments, reply, text: null });
    this.lists.append(element("section", { class: "pane" }, element("h3", {}, title), segments.list));
    this.replies.append(element("section", { class: "pane" }, element("h3", {}, title), reply));
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
      this.replies.replaceChildren(element("div", { class: "answer words" }, ...markdown(this.answer.trim())));
      return;
    }
    for (const pane of this.panes) renderPane(pane);
    this.element.classList.toggle("compared", this.panes.length > 1);
    // Without reasoning the segments are the answer: it is shown either with the decisions or without.
    this.element.classList.toggle("whole", own.reasoning === "");
    this.notices.replaceChildren(...notices(own));
    this.parameters.replaceChildren(...(own.id ? [parametersLine(own)] : []));
    this.tick();
  }

  /** The numbers alone, which also grow between two events. */
  tick() {
    const generations = this.panes.map((pane) => pane.generation);
    this.numbers.textContent = numbersLine(this.own);
    this.figures.replaceChildren(meters(this.own, this.other, this.pairs), timeline(generations), spreadTable(this.pairs));
  }
}

const tool = (action, words, kind = "plain") => element("button", { type: "button", class: kind, "data-action": action }, words);

function renderPane(pane) {
  const { generation, segments, reply } = pane;
  segments.update(generation);
  const text = generation.said;
  if (text === pane.text) return;
  pane.text = text;
  reply.replaceChildren(...markdown(text));
}
