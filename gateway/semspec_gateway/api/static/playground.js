// The page: questions become generations, shown as they grow; settings, addresses and conversations around them.

import * as api from "./api.js";
import { pairs } from "./comparison.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { exported, save } from "./export.js";
import { Form } from "./form.js";
import { Generation } from "./generation.js";
import { named, permalink, remember, showSessions } from "./history.js";
import { Inspector } from "./inspector.js";
import { keep, key, takeFromAddress } from "./key.js";
import { showError, spoken } from "./notes.js";
import { generate, goOn } from "./run.js";
import { Turn } from "./turn.js";
import { watchServices } from "./services.js";

const TICK_MS = 100;
const COPIED_MS = 1500;
const AT_END_PX = 80; // of the thread's end
const TOUCHES_END_PX = 4;
const WIDE = window.matchMedia("(min-width: 76rem)"); // as in playground.css

class Playground {
  constructor() {
    this.form = new Form();
    this.inspector = new Inspector(byId("inspector"));
    this.conversation = new Conversation(byId("turns"));
    this.thread = byId("thread");
    this.controller = null;
    this.running = null;
    /** The turn whose question is in the form, to be asked in other words. */
    this.edited = null;
    /** Whether the end of the thread is in view: then it stays there while the thread grows. */
    this.isAtEnd = true;
    this.scrollTop = 0;
    this.wire();
  }

  wire() {
    const on = (id, kind, act) => byId(id).addEventListener(kind, act);
    on("form", "submit", (event) => {
      event.preventDefault();
      this.send();
    });
    on("send", "click", (event) => {
      if (!this.controller) return; // it submits
      event.preventDefault();
      if (event.detail < 2) this.stop(); // a double click sends once, and stops nothing
    });
    on("prompt", "keydown", (event) => this.type(event));
    on("edit-end", "click", () => this.edit(null));
    on("fresh", "click", () => this.begin());
    on("export-text", "click", () => save(this.conversation.asText(), "text/markdown", "conversation.md"));
    on("key", "change", () => this.enter(byId("key").value));
    on("turns", "click", (event) => this.act(event.target.closest("[data-action]")));
    on("thread", "scroll", () => this.scrolled());
    on("to-end", "click", () => {
      this.isAtEnd = true;
      this.keepAtEnd();
    });
    new ResizeObserver(() => this.keepAtEnd()).observe(byId("turns"));
    this.thread.addEventListener("toggle", (event) => this.unfold(event.target), true);
    for (const kind of ["focusin", "pointerover", "click"]) on("turns", kind, (event) => this.inspect(event));
    on("turns", "keydown", (event) => this.step(event));
    window.addEventListener("hashchange", () => this.follow());
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.leave());
  }

  start() {
    takeFromAddress();
    byId("key").value = key();
    this.look = watchServices(byId("services"), byId("offline"));
    if (WIDE.matches) byId("prompt").focus();
    this.meet();
  }

  /** What is asked as soon as the page opens, and again with another key. */
  async meet() {
    this.open(named(location.hash));
    try {
      this.form.setModels(await api.models());
      if (named(location.hash) === null && this.conversation.turns.length === 0) this.form.prefill();
      this.listSessions();
    } catch (error) {
      this.complain(error);
    }
  }

  /** The end stays in view unless the reader scrolls up, and again once they have scrolled down to it. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.thread;
    const distance = scrollHeight - scrollTop - clientHeight;
    if (scrollTop < this.scrollTop) this.isAtEnd = distance < TOUCHES_END_PX;
    else this.isAtEnd ||= distance < AT_END_PX;
    this.scrollTop = scrollTop;
    this.showWayToEnd();
  }

  keepAtEnd() {
    if (this.isAtEnd) this.thread.scrollTop = this.scrollTop = this.thread.scrollHeight;
    this.showWayToEnd();
  }

  showWayToEnd() {
    byId("to-end").hidden = this.isAtEnd;
  }

  /** Go on with another key. */
  enter(given) {
    keep(given);
    byId("key").value = key();
    this.quiet();
    this.look();
    this.meet();
  }

  /** To what the address has come to name. */
  follow() {
    const before = key();
    takeFromAddress();
    if (key() === before) this.open(named(location.hash));
    else this.enter(key());
  }

  async send(question = this.form.prompt.trim(), index = this.conversation.turns.indexOf(this.edited), formerSeed = null) {
    if (this.controller || !question) return;
    const before = this.conversation.cutTo(index < 0 ? Infinity : index);
    const { session, messages, all } = this.conversation.ask(question, this.form.system);
    const body = this.form.body(messages, session);
    if (body.seed === formerSeed && formerSeed !== null) body.seed += 1; // the same seed gives the same answer
    const own = new Generation(body.model, question);
    const compared = this.form.compares ? { body: this.form.body(all), own, numSeeds: this.form.numSeeds, target: this.form.targetModel } : null;
    const turn = this.show(Turn.of(own), session);
    this.edit(null);
    if (this.form.prompt.trim() === question) this.form.prompt = "";
    const ended = await this.run(turn, own, (changed, signal) => generate(body, own, changed, signal));
    if (!this.conversation.turns.includes(turn)) return; // something else is shown by now
    if (own.status !== "finished" && own.id === null) return this.withdraw(question, before);
    this.close(turn);
    if (ended && compared) await this.compare(turn, compared);
  }

  /** The last turn came to an end, or to a halt. */
  close(turn) {
    this.conversation.ended(turn);
    this.form.expect(turn.own.summary?.expected);
    this.listSessions();
  }

  /** Nothing was begun: everything is as it was before. */
  withdraw(question, before) {
    this.conversation.set(...before);
    if (!this.form.prompt) this.form.prompt = question;
    this.render();
  }

  /** A turn of a session, below the others, which fold. */
  show(turn, session) {
    turn.session = session;
    this.quiet();
    this.inspector.clear();
    this.conversation.add(turn);
    this.isAtEnd = true;
    this.render();
    return turn;
  }

  /** The same question to the target alone, and both with further seeds. */
  async compare(turn, { body, own, numSeeds, target }) {
    const ask = (generation, asked) => this.run(turn, generation, (changed, signal) => generate(asked, generation, changed, signal));
    const alone = new Generation(target, own.prompt);
    turn.add(alone, "Target alone");
    turn.decisions.open = true;
    this.render(turn);
    for await (const pair of pairs({ body, own, alone, numSeeds }, ask)) {
      turn.pairs.push(pair);
      this.render(turn);
    }
  }

  /** Do `work` on a generation of a turn, shown all the while. True if it came to its own end. */
  async run(turn, generation, work) {
    const controller = (this.controller = new AbortController());
    this.running = generation;
    let frame = null; // several events between two frames are shown at once
    const changed = (status = "running") => {
      if (controller.signal.aborted) return;
      generation.status = status;
      this.announceId(turn);
      frame ??= requestAnimationFrame(() => {
        frame = null;
        this.render(turn);
      });
    };
    this.setRunning(true);
    byId("status").textContent = "";
    const clock = setInterval(() => turn.tick(), TICK_MS);
    try {
      await work(changed, controller.signal);
      generation.end("finished");
    } catch (error) {
      this.fail(generation, error, controller.signal);
    } finally {
      clearInterval(clock);
      cancelAnimationFrame(frame);
      if (this.controller === controller) this.finishRun(generation);
    }
    return generation.status === "finished" && this.controller === null;
  }

  fail(generation, error, signal) {
    const isCut = generation.id !== null && ["connection_lost", "unreachable"].includes(error.code);
    generation.end(signal.aborted ? "cancelled" : isCut ? "cut" : "failed");
    if (!signal.aborted && !isCut) this.complain(error);
  }

  finishRun(generation) {
    this.controller = null;
    this.setRunning(false);
    this.render();
    byId("status").textContent = spoken(generation);
  }

  setRunning(isRunning) {
    this.form.setRunning(isRunning);
    this.thread.setAttribute("aria-busy", String(isRunning));
  }

  /** Stop here, then for good on the server, where it could otherwise be gone on with. */
  stop() {
    const { id } = this.running;
    this.controller.abort();
    if (id) api.cancel(id).catch(() => {}); // it has ended here all the same
  }

  /** Leave what runs to the server: something else is shown. */
  abandon() {
    this.controller?.abort();
    this.controller = null;
    this.setRunning(false);
    this.quiet();
    this.inspector.clear();
    this.edit(null);
  }

  async resume(turn) {
    this.quiet();
    await this.run(turn, turn.own, (changed, signal) => goOn(turn.own, changed, signal));
    if (this.conversation.turns.includes(turn)) this.close(turn);
  }

  /** An empty conversation. */
  begin() {
    this.abandon();
    this.conversation.set([], null, "");
    window.history.pushState(null, "", location.pathname);
    byId("status").textContent = "";
    this.changedConversation();
    byId("prompt").focus();
  }

  changedConversation() {
    if (byId("conversations").matches(":popover-open")) byId("conversations").hidePopover();
    this.isAtEnd = true;
    this.render();
    this.listSessions();
  }

  /** The conversations that the server keeps. */
  async listSessions() {
    try {
      const found = await api.sessions();
      showSessions(byId("sessions"), found, this.conversation.session, (name) => this.openSession(name), (name) => this.forget(name));
    } catch {
      byId("sessions").replaceChildren(); // no key, or a gateway that has no list
    }
  }

  async openSession(name) {
    try {
      const messages = await api.session(name);
      this.abandon();
      this.take(name, messages);
    } catch (error) {
      this.complain(error);
      return;
    }
    window.history.pushState(null, "", location.pathname);
    this.changedConversation();
    byId("prompt").focus();
  }

  take(name, messages, numTurns) {
    this.conversation.take(name, messages, numTurns);
    this.form.system = this.conversation.system;
    this.form.prompt = "";
  }

  async forget(name) {
    try {
      await api.forget(name);
      remember(name, null);
    } catch (error) {
      this.complain(error);
      return;
    }
    if (this.conversation.session === name) this.begin();
    else this.listSessions();
  }

  /** Show a stored generation after the turns before it, and follow it if it still runs. */
  async open(id) {
    const shown = this.conversation.turns.find((turn) => turn.id === id);
    if (id === null || shown) return shown?.element.scrollIntoView();
    this.abandon();
    try {
      const [meta, trace] = await Promise.all([api.stored(id), api.trace(id)]);
      const messages = meta.session ? await api.session(meta.session).catch(() => []) : [];
      if (this.controller || named(location.hash) !== id) return; // meanwhile something else was asked for
      const generation = Generation.stored(meta, trace);
      const { at, question } = placeOf(generation, messages);
      generation.prompt = window.history.state?.question ?? question ?? generation.prompt;
      this.take(meta.session, messages, messages.slice(0, at).filter(({ role }) => role === "user").length);
      const turn = this.show(Turn.of(generation), meta.session);
      if (at !== messages.length - 2) this.conversation.session = null; // the server has it not, or more after it
      this.listSessions();
      if (meta.status === "running") await this.resume(turn);
    } catch (error) {
      this.complain(error);
    }
  }

  unfold(details) {
    const turn = this.conversation.of(details);
    if (turn?.decisions !== details || !details.open) return;
    if (turn.own) turn.tick();
    else this.load(turn);
  }

  /** The trace of a turn of which only the texts are here. */
  async load(turn) {
    if (turn.own || turn.id === null || turn.isLoading) return;
    turn.isLoading = true;
    try {
      const [meta, trace] = await Promise.all([api.stored(turn.id), api.trace(turn.id)]);
      turn.add(Object.assign(Generation.stored(meta, trace), { prompt: turn.question }), "Answer");
    } catch (error) {
      this.complain(error);
    }
    turn.isLoading = false;
  }

  /** Show what became of one turn, or of all. */
  render(changed = null) {
    const { conversation } = this;
    for (const turn of changed ? [changed] : conversation.turns) turn.render();
    byId("introduction").hidden = conversation.turns.length > 0;
    byId("system-shown").hidden = !conversation.system;
    byId("system-shown").textContent = `System prompt: ${conversation.system}`;
    byId("export-text").hidden = conversation.turns.length === 0;
    this.keepAtEnd();
  }

  /** What a button of a turn does. */
  act(button) {
    const turn = button && this.conversation.of(button);
    if (!turn) return;
    const { own, question } = turn;
    const acts = {
      copy: () => copy(button, turn.said.trim()),
      "copy-code": () => copy(button, button.closest(".code").querySelector("code").textContent),
      "copy-question": () => copy(button, question),
      link: () => copy(button, new URL(permalink(turn.id), location.href).href),
      edit: () => !this.controller && this.edit(turn),
      regenerate: () => this.send(question, this.conversation.turns.indexOf(turn), own?.seed ?? null),
      resume: () => !this.controller && this.resume(turn),
      export: () => this.export(turn),
    };
    acts[button.dataset.action]();
  }

  /** Put a turn's question into the form, to be asked in other words; null ends that. */
  edit(turn) {
    if (turn !== null || this.edited !== null) this.form.prompt = turn?.question ?? "";
    this.edited = turn;
    byId("editing").hidden = turn === null;
    if (turn) byId("prompt").focus();
  }

  async export(turn) {
    await this.load(turn);
    if (!turn.own) return; // the server has it no more
    const messages = this.conversation.turns.slice(0, this.conversation.turns.indexOf(turn)).flatMap((one) => one.messages);
    const text = JSON.stringify(exported(turn, this.conversation.session, messages), null, 2);
    save(text, "application/json", `${turn.id}.json`);
  }

  quiet() {
    byId("alert").replaceChildren();
    this.form.blame(null);
  }

  complain(error) {
    this.form.blame(error.param ?? error.code);
    showError(byId("alert"), error, this.form.blamed);
  }

  announceId({ own, question }) {
    if (own.id && named(location.hash) !== own.id) window.history.replaceState({ question }, "", permalink(own.id));
  }

  /** Enter sends where there is a keyboard; on a phone it begins a line. */
  type(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (!(event.ctrlKey || event.metaKey) && matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    this.send();
  }

  leave() {
    if (this.form.settings.open) return; // that is what the key closes
    if (this.edited) this.edit(null);
    else this.inspector.clear();
  }

  /** Pointing is enough where the details have a column of their own; elsewhere they wait for a tap. */
  inspect(event) {
    const line = event.target.closest("[data-index]");
    const behind = line && this.conversation.of(line)?.panes.map((pane) => pane.behind(line)).find(Boolean);
    if (!behind || (event.type === "pointerover" && !WIDE.matches)) return;
    this.inspector.show(behind);
    if (!WIDE.matches) line.scrollIntoView({ block: "nearest" });
  }

  /** Arrow keys move between segments. */
  step(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.matches("button.segment")) return;
    const lines = [...event.target.closest(".pane").querySelectorAll("button.segment")].filter((line) => line.checkVisibility());
    event.preventDefault();
    lines[lines.indexOf(event.target) + step]?.focus();
  }
}

/** Where a generation is among the messages of its session, and its question; at the end if they do not have it. */
function placeOf({ prompt, said, status }, messages) {
  const isIt = ({ role, content }, index) => role === "user" && prompt.includes(content) && messages[index + 1]?.content.trim() === said;
  const at = status === "finished" ? messages.findLastIndex(isIt) : -1;
  return at < 0 ? { at: messages.length, question: null } : { at, question: messages[at].content };
}

async function copy(button, text) {
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  const words = (button.dataset.words ??= button.textContent);
  button.textContent = isCopied ? "Copied" : "Not allowed here";
  setTimeout(() => (button.textContent = words), COPIED_MS);
}

new Playground().start();
