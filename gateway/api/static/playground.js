// The page: the form's request becomes a generation, shown as it grows; addresses, history and export around it.

import * as api from "./api.js";
import { byId, element } from "./dom.js";
import { pairs, withTurns } from "./comparison.js";
import { Conversation } from "./conversation.js";
import { exported, save } from "./export.js";
import { showMeters, showSpread, showTimeline } from "./figures.js";
import { BUNDLED, Form } from "./form.js";
import { Generation } from "./generation.js";
import { History, named, permalink, showSessions } from "./history.js";
import { Inspector } from "./inspector.js";
import { keep, key, takeFromAddress } from "./key.js";
import { parametersLine, showError, showNotices, spoken } from "./notes.js";
import { generate, goOn } from "./run.js";
import { Segments } from "./segments.js";
import { watchServices } from "./services.js";

const TICK_MS = 100;
const WIDE = window.matchMedia("(min-width: 76rem)"); // as in playground.css

class Playground {
  constructor() {
    this.form = new Form();
    this.history = new History(byId("history"), byId("history-empty"), byId("history-clear"));
    this.inspector = new Inspector(byId("inspector"));
    this.conversation = new Conversation(byId("turns"));
    this.panes = [];
    /** What own and target took with each seed. */
    this.pairs = [];
    this.controller = null;
    this.running = null;
    this.form.setModels([BUNDLED]); // until the server has named its models
    this.wire();
    showMeters(byId("meters"), Generation.none(), null);
  }

  wire() {
    byId("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("resume").addEventListener("click", () => this.resume());
    byId("export").addEventListener("click", () => this.export());
    byId("export-text").addEventListener("click", () => this.exportText());
    byId("converse").addEventListener("change", () => this.converse());
    byId("fresh").addEventListener("click", () => this.beginAfresh());
    byId("link").addEventListener("click", () => this.copyLink());
    byId("key").addEventListener("change", () => this.enter(byId("key").value));
    window.addEventListener("hashchange", () => this.follow());
    const panes = byId("panes");
    for (const kind of ["focusin", "pointerover"]) panes.addEventListener(kind, (event) => this.inspect(event));
    panes.addEventListener("keydown", (event) => this.step(event));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.inspector.clear());
  }

  start() {
    takeFromAddress();
    byId("key").value = key();
    this.look = watchServices(byId("services"), byId("offline"));
    this.meet();
  }

  /** What is asked as soon as the page opens, and again with another key. */
  async meet() {
    this.open(named(location.hash));
    try {
      this.form.setModels(await api.models());
      this.listSessions();
    } catch (error) {
      this.complain(error);
    }
  }

  /** Go on with another key. */
  enter(given) {
    keep(given);
    byId("key").value = key();
    byId("alert").replaceChildren();
    this.form.blame(null);
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

  /** The generation asked for, the first of the panes. */
  get own() {
    return this.panes[0]?.generation ?? null;
  }

  get other() {
    return this.panes[1]?.generation ?? null;
  }

  async send() {
    if (this.controller) return;
    if (this.form.converses) this.conversation.goOn(this.own);
    else this.conversation.end();
    const [body, compares, target] = [this.form.body(this.conversation.session), this.form.compares, this.form.targetModel];
    const own = new Generation(body.model, this.form.prompt.trim());
    const earlier = this.conversation.messages;
    this.begin(own);
    reveal(byId("result"));
    const ended = await this.run(own, (changed, signal) => generate(body, own, changed, signal));
    if (own.status === "finished") {
      this.history.add(own);
      this.listSessions();
    }
    this.form.expect(own.summary?.expected);
    if (ended && compares) await this.compare(withTurns(body, earlier), own, target);
    if (own.status === "finished" && this.conversation.session) this.form.prompt = "";
    this.render();
  }

  /** The same question to the target alone, and both with further seeds. */
  async compare(body, own, target) {
    const ask = (generation, asked) => this.run(generation, (changed, signal) => generate(asked, generation, changed, signal));
    const alone = new Generation(target, own.prompt);
    this.addPane(alone, "Target alone", "target");
    for await (const pair of pairs({ body, own, alone, numSeeds: this.form.numSeeds }, ask)) {
      this.pairs.push(pair);
      this.render();
    }
  }

  /** Whether the next question goes on from here. */
  converse() {
    if (this.form.converses) return;
    this.beginAfresh();
    this.form.converses = false;
  }

  beginAfresh() {
    this.conversation.end();
    byId("fresh").hidden = true;
    byId("prompt").focus();
  }

  /** The conversations that the server keeps. */
  async listSessions() {
    try {
      showSessions(byId("sessions"), await api.sessions(), (name) => this.openSession(name));
    } catch {
      byId("sessions").replaceChildren(); // no key, or a gateway that has no list
    }
  }

  async openSession(name) {
    try {
      this.conversation.take(name, await api.session(name));
    } catch (error) {
      this.complain(error);
      return;
    }
    this.controller?.abort();
    this.controller = null;
    this.setRunning(false);
    window.history.pushState(null, "", location.pathname);
    this.panes = [];
    this.pairs = [];
    byId("panes").replaceChildren();
    for (const id of ["introduction", "facts", "asked", "timeline", "spread"]) byId(id).hidden = true;
    this.form.converses = true;
    this.form.prompt = "";
    byId("fresh").hidden = false;
    showMeters(byId("meters"), Generation.none(), null);
    reveal(byId("result"));
    byId("prompt").focus();
  }

  /** Do `work` on a generation, its state on the page all the while. True if it came to its own end. */
  async run(generation, work) {
    const controller = (this.controller = new AbortController());
    this.running = generation;
    const changed = (status = "running") => {
      if (controller.signal.aborted) return;
      generation.status = status;
      this.announceId(generation);
      this.render();
    };
    this.setRunning(true);
    const clock = setInterval(() => showMeters(byId("meters"), this.own, this.other), TICK_MS);
    try {
      await work(changed, controller.signal);
      generation.end("finished");
    } catch (error) {
      this.fail(generation, error, controller.signal);
    } finally {
      clearInterval(clock);
      if (this.controller === controller) this.finishRun(generation);
    }
    return generation.status === "finished" && this.controller === null;
  }

  fail(generation, error, signal) {
    generation.end(signal.aborted ? "cancelled" : "failed");
    if (signal.aborted) return;
    this.complain(error);
  }

  complain(error) {
    showError(byId("alert"), error);
    this.form.blame(error.param ?? error.code);
    reveal(byId("alert"));
  }

  finishRun(generation) {
    this.controller = null;
    this.setRunning(false);
    this.render();
    byId("status").textContent = spoken(generation);
  }

  setRunning(isRunning) {
    this.form.setRunning(isRunning);
    byId("result").setAttribute("aria-busy", String(isRunning));
  }

  /** Stop here, then for good on the server, where it could otherwise be gone on with. */
  stop() {
    if (!this.controller) return;
    const { id } = this.running;
    this.controller.abort();
    if (id) api.cancel(id).catch(() => {}); // it has ended here all the same
  }

  /** Show a stored generation, and follow it if it still runs. */
  async open(id) {
    if (id === null || id === this.own?.id) return;
    this.controller?.abort();
    this.controller = null;
    this.setRunning(false);
    try {
      const [meta, trace] = await Promise.all([api.stored(id), api.trace(id)]);
      if (this.controller || named(location.hash) !== id) return; // meanwhile something else was asked for
      const generation = this.recalled(Generation.stored(meta, trace));
      if (meta.session) await this.recallTurns(meta, generation);
      else this.conversation.end();
      this.begin(generation);
      if (meta.status === "running") await this.resume();
    } catch (error) {
      this.complain(error);
    }
  }

  /** With the question as it was put, if this browser did. */
  recalled(generation) {
    const entry = this.history.find(generation.id);
    if (entry) this.form.prompt = generation.prompt = entry.prompt;
    return generation;
  }

  /** With the turns before it, if the server still has them. */
  async recallTurns(meta, generation) {
    try {
      const question = this.conversation.takeUpTo(meta.session, await api.session(meta.session), meta.prompt?.text ?? "");
      if (question !== null) this.form.prompt = generation.prompt = question;
      this.form.converses = true;
    } catch {
      this.conversation.end();
    }
  }

  async resume() {
    const generation = this.own;
    byId("resume").hidden = true;
    await this.run(generation, (changed, signal) => goOn(generation, changed, signal));
  }

  begin(generation) {
    this.panes = [];
    this.pairs = [];
    byId("panes").replaceChildren();
    byId("alert").replaceChildren();
    byId("status").textContent = "";
    this.form.blame(null);
    this.inspector.clear();
    byId("introduction").hidden = true;
    this.addPane(generation, "Answer", "own");
  }

  addPane(generation, title, prefix) {
    const segments = new Segments(title, prefix);
    this.panes.push({ generation, segments });
    byId("panes").append(element("section", { class: "pane" }, element("h3", {}, title), segments.list));
    this.render();
  }

  announceId(generation) {
    if (generation === this.own && generation.id && named(location.hash) !== generation.id) {
      window.history.pushState(null, "", permalink(generation.id));
    }
  }

  render() {
    if (!this.own) return;
    for (const { generation, segments } of this.panes) segments.update(generation);
    byId("asked").hidden = this.own.prompt === this.form.prompt.trim();
    byId("asked").textContent = this.own.prompt;
    byId("facts").hidden = this.own.id === null;
    byId("parameters").replaceChildren(parametersLine(this.own));
    byId("resume").hidden = this.own.status !== "interrupted";
    showNotices(byId("notices"), this.own);
    showMeters(byId("meters"), this.own, this.other, this.pairs);
    showSpread(byId("spread"), this.pairs);
    byId("fresh").hidden = this.conversation.session === null;
    showTimeline(byId("timeline"), byId("timeline-rows"), this.panes.map((pane) => pane.generation));
  }

  /** Pointing is enough where the details have a column of their own; the sheet that covers the text waits for a tap. */
  inspect(event) {
    const item = event.target.closest("[data-index]");
    const pane = this.panes.find(({ segments }) => segments.behind.has(item));
    if (!pane || (event.type === "pointerover" && !WIDE.matches)) return;
    this.inspector.show(pane.segments.behind.get(item));
    if (!WIDE.matches) item.scrollIntoView({ block: "nearest" });
  }

  /** Arrow keys move between segments. */
  step(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && event.target.matches("[data-index]") ? event.target[step] : null;
    if (!next?.matches("[data-index]")) return;
    event.preventDefault();
    next.focus();
  }

  export() {
    const text = JSON.stringify(exported(this.panes.map((pane) => pane.generation), this.pairs, this.conversation), null, 2);
    save(text, "application/json", `${this.own.id}.json`);
  }

  /** The conversation as Markdown, with the reasoning of the last answer. */
  exportText() {
    save(this.conversation.asText(this.own), "text/markdown", `${this.own.id}.md`);
  }

  async copyLink() {
    const link = new URL(permalink(this.own.id), location.href).href;
    const isCopied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
    byId("link").textContent = isCopied ? "Copied" : "See the address bar";
    window.history.replaceState(null, "", permalink(this.own.id));
    setTimeout(() => (byId("link").textContent = "Copy link"), 2000);
  }
}

/** Scroll to what lies below the fold, as it does on a phone. */
function reveal(node) {
  const { top } = node.getBoundingClientRect();
  if (top < 0 || top > window.innerHeight * 0.7) node.scrollIntoView();
}

new Playground().start();
