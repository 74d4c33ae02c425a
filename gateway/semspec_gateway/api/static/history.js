// The conversations that the server keeps, and in localStorage which generations this browser asked for in each.

import { element } from "./dom.js";
import { count } from "./format.js";

const KEY = "semspec.traces";
const MOST = 20; // conversations

/** Ids of the generations of a conversation's turns, as far as this browser knows them. */
export const recall = (session) => read()[session] ?? [];

/** Null forgets them. */
export function remember(session, ids) {
  const { [session]: _, ...others } = read();
  const entries = [...(ids ? [[session, ids]] : []), ...Object.entries(others)].slice(0, MOST);
  try {
    localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(entries)));
  } catch {
    // full or forbidden: the page works without
  }
}

function read() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    return {};
  }
}

/** Fill the list of conversations; `open` and `forget` are called with the name of the chosen one. */
export function showSessions(list, sessions, current, open, forget) {
  list.replaceChildren(...sessions.map((session) => item(session, current, open, forget)));
}

function item({ id, question, num_turns: number }, current, open, forget) {
  const title = element("button", { type: "button", class: "plain", title: question, "aria-current": id === current ? "true" : null }, question);
  const remove = element("button", { type: "button", class: "plain remove", "aria-label": `Delete: ${question.slice(0, 40)}` }, "×");
  title.addEventListener("click", () => open(id));
  remove.addEventListener("click", () => forget(id));
  return element("li", {}, title, remove, element("small", {}, count(Math.floor(number / 2), "question")));
}

export const permalink = (id) => `#generation=${encodeURIComponent(id)}`;

/** The generation an address names, or null. */
export const named = (hash) => new URLSearchParams(hash.replace(/^#/, "")).get("generation");
