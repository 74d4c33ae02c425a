// The last generations of this browser, in localStorage; without storage there is no history and no error.

import { element } from "./dom.js";
import { count, seconds, share } from "./format.js";

const KEY = "semspec.history";
const MOST = 20;

export class History {
  constructor(list, empty, clear) {
    Object.assign(this, { list, empty, clear });
    clear.addEventListener("click", () => this.write([]));
    this.show();
  }

  add(generation) {
    const { id, prompt, model, seed, acceptance, latencyMs } = generation;
    const entry = { id, prompt, model, seed, acceptance, latency_ms: latencyMs, at: Date.now() };
    this.write([entry, ...this.read().filter((other) => other.id !== id)].slice(0, MOST));
  }

  find(id) {
    return this.read().find((entry) => entry.id === id) ?? null;
  }

  read() {
    try {
      return JSON.parse(localStorage.getItem(KEY) ?? "[]").filter(isEntry);
    } catch {
      return [];
    }
  }

  write(entries) {
    try {
      localStorage.setItem(KEY, JSON.stringify(entries));
    } catch {
      // full or forbidden: the page works without
    }
    this.show();
  }

  show() {
    const entries = this.read();
    this.empty.hidden = entries.length > 0;
    this.clear.hidden = entries.length === 0;
    this.list.replaceChildren(...entries.map(item));
  }
}

const isEntry = (entry) => [entry.id, entry.prompt, entry.model].every((value) => typeof value === "string");

function item(entry) {
  const facts = [entry.model.split(":")[1] ?? "default", `${share(entry.acceptance)} accepted`, seconds(entry.latency_ms)];
  return element(
    "li",
    {},
    element("a", { href: permalink(entry.id), title: entry.prompt }, entry.prompt),
    element("small", {}, facts.join(", ")),
  );
}

export const permalink = (id) => `#generation=${encodeURIComponent(id)}`;

/** The list of conversations; `open` is called with the name of the chosen one. */
export function showSessions(list, sessions, open) {
  list.replaceChildren(...sessions.map((session) => conversation(session, open)));
}

function conversation({ id, question, num_turns: number }, open) {
  const button = element("button", { type: "button", class: "plain", title: question }, question);
  button.addEventListener("click", () => open(id));
  return element("li", {}, button, element("small", {}, `conversation, ${count(Math.ceil(number / 2), "question")}`));
}

/** The generation an address names, or null. */
export const named = (hash) => new URLSearchParams(hash.replace(/^#/, "")).get("generation");
