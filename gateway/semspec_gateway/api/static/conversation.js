// The turns of a conversation; the server keeps them under the session's name. A conversation that is changed is a new one.

import { recall, remember } from "./history.js";
import { Turn } from "./turn.js";

export class Conversation {
  constructor(list) {
    this.list = list;
    this.set([], null, "");
  }

  set(turns, session, system) {
    /** `session`: under which the server has these turns, in this order; null if under none. */
    Object.assign(this, { turns, session, system });
    this.list.replaceChildren(...turns.map((turn) => turn.element));
  }

  /** As the server has it. */
  take(session, messages, numTurns = Infinity) {
    const ids = recall(session);
    const turns = [];
    for (const { role, content } of messages) {
      if (role === "system" || role === "developer") continue;
      if (role === "user" || turns.length === 0) turns.push({ question: "", answer: "" });
      turns.at(-1)[role === "user" ? "question" : "answer"] += content;
    }
    const shown = turns.slice(0, numTurns).map(({ question, answer }, index) => new Turn(question, answer, ids[index] ?? null));
    const system = messages.find(({ role }) => role === "system")?.content ?? "";
    this.set(shown, turns.length > numTurns ? null : session, system);
  }

  /** What asks `question` next: the messages to send and the session, and all messages, as a request without one has them. */
  ask(question, system) {
    const first = system ? [{ role: "system", content: system }] : [];
    const all = [...first, ...this.turns.flatMap((turn) => turn.messages), { role: "user", content: question }];
    const goesOn = this.session !== null && system === this.system;
    this.system = system;
    return { session: goesOn ? this.session : fresh(), messages: goesOn ? all.slice(-1) : all, all };
  }

  add(turn) {
    this.turns.push(turn);
    this.list.append(turn.element);
  }

  /** Leave out the turns from the one at `index` on, and return how it was before, for `set`. */
  cutTo(index) {
    const before = [[...this.turns], this.session, this.system];
    if (index < this.turns.length) this.set(this.turns.slice(0, index), null, this.system);
    return before;
  }

  /** `turn` came to an end in its session. */
  ended(turn) {
    this.session = turn.isKept && turn === this.turns.at(-1) ? turn.session : null;
    if (this.session) remember(this.session, this.turns.filter((one) => one.isKept).map((one) => one.id));
  }

  of(node) {
    return this.turns.find((turn) => turn.element.contains(node)) ?? null;
  }

  /** Everything as Markdown, with the reasoning that is known. */
  asText() {
    return this.turns.map(asText).join("\n\n");
  }
}

function asText({ question, own, said }) {
  const reasoning = own?.reasoning ? `<details><summary>Reasoning</summary>\n\n${own.reasoning}\n\n</details>\n\n` : "";
  return `## Question\n\n${question}\n\n${reasoning}${said.trim()}\n`;
}

const fresh = () => `playground-${[...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
