// The turns before the question that is asked now; the server keeps them under the session's name.

import { element } from "./dom.js";
import { permalink } from "./history.js";
import { markdown } from "./markdown.js";

export class Conversation {
  constructor(list) {
    this.list = list;
    this.end();
  }

  /** Nothing is kept from here on. */
  end() {
    this.session = null;
    this.turns = [];
    this.show();
  }

  /** The next question follows `generation`, if that has ended in this session. */
  goOn(generation) {
    if (this.session === null) {
      this.session = `playground-${[...crypto.getRandomValues(new Uint8Array(8))].map(hex).join("")}`;
    } else if (generation?.status === "finished") {
      this.turns.push({ role: "user", content: generation.prompt, id: generation.id });
      this.turns.push({ role: "assistant", content: generation.said });
    }
    this.show();
  }

  /** A conversation as the server has it. */
  take(session, turns) {
    this.session = session;
    this.turns = turns;
    this.show();
  }

  /** The turns before a generation, by the prompt that its model received; its question, or null if it is not found. */
  takeUpTo(session, turns, prompt) {
    const at = turns.findLastIndex(({ role, content }) => role === "user" && prompt.includes(content));
    this.take(session, at < 0 ? turns : turns.slice(0, at));
    return at < 0 ? null : turns[at].content;
  }

  get messages() {
    return this.turns.map(({ role, content }) => ({ role, content }));
  }

  show() {
    this.list.replaceChildren(...this.turns.map(turn));
  }

  /** Everything as Markdown, `generation` last. */
  asText(generation) {
    const parts = this.turns.map(({ role, content }) => (role === "user" ? `## Question\n\n${content}` : content));
    parts.push(`## Question\n\n${generation.prompt}`);
    if (generation.reasoning) parts.push(`<details><summary>Reasoning</summary>\n\n${generation.reasoning}\n\n</details>`);
    return [...parts, generation.said, ""].join("\n\n");
  }
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

function turn({ role, content, id }) {
  if (role !== "user") return element("li", { class: "said" }, ...markdown(content));
  const trace = id ? element("a", { href: permalink(id) }, "its trace") : null;
  return element("li", { class: "asked" }, content, " ", trace);
}
