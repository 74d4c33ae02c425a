// What is known of one generation, grown from the chunks of its stream or read from the store. Knows nothing of the page.

import { ApiError } from "./api.js";

/** What stands between reasoning and answer, in each form that the server tells apart. */
const ENDS_OF_REASONING = ["</think>", "[/THINK]", "<|end|><|start|>assistant<|channel|>final<|message|>"];
/** The content of a box, with up to two levels of braces inside. */
export const BOXED = /\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}/;
const STAGES = ["draft_ms", "read_ms", "judge_ms", "write_ms"]; // wire_ms is part of these

export class Generation {
  constructor(model, prompt) {
    this.model = model;
    this.prompt = prompt;
    this.id = null;
    this.status = "running";
    this.lastEventId = null;
    this.records = [];
    /** What has arrived of the segment that is being written, as the server parts it. */
    this.written = { reasoning: "", content: "" };
    /** Whether the server tells reasoning and answer apart. */
    this.isParted = false;
    /** Segments drafted and not yet decided, by index. */
    this.inFlight = new Map();
    /** The last chunk's statistics. */
    this.summary = null;
    this.seed = null;
    this.parameters = null;
    this.startedAt = performance.now();
  }

  /** One that the gateway kept: the generation object and its trace. */
  static stored(meta, trace) {
    const generation = new Generation(meta.model, meta.prompt?.text ?? "");
    Object.assign(generation, { id: meta.id, status: meta.status, seed: meta.seed, parameters: meta.parameters });
    generation.replace(trace.segments);
    return generation;
  }

  /** Take in one chunk. Throws: ApiError, if it is the stream's last words. */
  apply(chunk) {
    if (chunk.error) throw ApiError.of(chunk.error);
    this.id ??= chunk.id ?? null;
    const own = chunk.semspec ?? {};
    this.write(chunk.choices?.[0]?.delta ?? {}); // a whole segment's text stands in its record as well
    if (own.drafted) this.draft(own.drafted);
    if (own.segment) this.keep(own.segment);
    if (own.id) this.finish(own);
  }

  write({ reasoning_content: reasoning, content }) {
    this.written.reasoning += reasoning ?? "";
    this.written.content += content ?? "";
    this.isParted ||= Boolean(reasoning);
  }

  draft({ index, segments }) {
    this.forget(index);
    segments.forEach((segment, offset) => this.inFlight.set(index + offset, segment));
  }

  keep(record) {
    this.records[record.index] = record;
    this.written = { reasoning: "", content: "" };
    if (record.verdict === "accepted") this.inFlight.delete(record.index);
    else this.forget(record.index); // what was drafted after a refused segment is void
  }

  finish(summary) {
    this.summary = summary;
    this.seed = summary.seed;
    this.parameters = summary.parameters;
    if (summary.trace) this.replace(summary.trace);
  }

  /** The records as the store has them. */
  replace(records) {
    this.records = records;
    this.written = { reasoning: "", content: "" };
    this.inFlight.clear();
  }

  end(status) {
    this.status = status;
    this.inFlight.clear();
    if (status === "finished") this.written = { reasoning: "", content: "" }; // the last of it was kept back until now
  }

  forget(index) {
    for (const later of [...this.inFlight.keys()]) if (later >= index) this.inFlight.delete(later);
  }

  get numAccepted() {
    return this.kept.filter((record) => record.verdict === "accepted").length;
  }

  get numJudged() {
    return this.kept.filter((record) => record.verdict !== "unjudged").length;
  }

  get acceptance() {
    return this.numJudged ? this.numAccepted / this.numJudged : null;
  }

  get numTokens() {
    return sum(this.kept.map((record) => record.num_tokens));
  }

  /** Share of the tokens that the target came up with. */
  get targetShare() {
    const own = (record) => (record.writer === "target" ? record.num_tokens - (record.num_accepted_tokens ?? 0) : 0);
    return this.numTokens ? sum(this.kept.map(own)) / this.numTokens : null;
  }

  /** The server's word; before there is one, the clock; of a stored one, what its stages took. */
  get latencyMs() {
    if (this.summary) return this.summary.latency_ms;
    if (this.status === "running") return performance.now() - this.startedAt;
    return this.kept.length ? sum(this.kept.map(duration)) : null;
  }

  get tokensPerSecond() {
    return this.numTokens && this.latencyMs ? (this.numTokens / this.latencyMs) * 1000 : null;
  }

  get strategy() {
    return this.parameters?.strategy ?? this.model?.split(":")[1] ?? null;
  }

  /** Whether it may still grow. */
  get isOpen() {
    return this.status === "running" || this.status === "reconnecting";
  }

  /** Whether the server may have, or write, more than is here. */
  get isResumable() {
    return this.status === "cut" || this.status === "interrupted";
  }

  /** The text of the segment that is being written. A server that parts reasoning and answer leaves out what is between. */
  get writing() {
    const { reasoning, content } = this.written;
    const isCrossing = this.isParted && content && !ENDS_OF_REASONING.some((end) => this.keptText.includes(end));
    return reasoning + (isCrossing ? ENDS_OF_REASONING[0] : "") + content;
  }

  get keptText() {
    return this.kept.map((record) => record.text).join("");
  }

  /** What it says after the reasoning; all of it where no reasoning ends. */
  get said() {
    const text = this.keptText + this.writing;
    return (parted(text).answer ?? text).trim();
  }

  /** The reasoning before that. */
  get reasoning() {
    const { reasoning, answer } = parted(this.keptText + this.writing);
    return answer === null ? "" : reasoning.trim();
  }

  /** What stands in `\boxed{}` of the answer, or else all of the answer; null while that is not known. */
  get answer() {
    const isWhole = this.status === "finished" && !this.isParted;
    const answer = (parted(this.keptText).answer ?? (isWhole ? this.keptText : null))?.trim();
    return answer ? (BOXED.exec(answer)?.[1] ?? answer) : null;
  }

  /** The segments in reading order, with where each begins and ends: those kept, then what is being written or drafted. */
  get segments() {
    const kept = this.kept.map((record) => ({ index: record.index, text: record.text, record }));
    const index = this.records.length;
    const drafts = [...this.inFlight].map(([at, { text }]) => ({ index: at, text }));
    let end = 0;
    return [...kept, ...(this.writing ? [{ index, text: this.writing }] : drafts)].map((segment) => {
      const start = end;
      end += segment.text.length;
      return { ...segment, start, end, isSure: Boolean(segment.record || this.writing) };
    });
  }

  /** Records without the holes that a re-attached stream may leave for a moment. */
  get kept() {
    return this.records.filter(Boolean);
  }

  get isWhole() {
    return this.kept.length === this.records.length;
  }
}

/** Wall time that one segment took, in milliseconds. */
export const duration = (record) => sum(STAGES.map((stage) => record.times?.[stage] ?? 0));

/** A text's parts before and after the end of the reasoning; `answer` is null where it does not end here. */
export function parted(text) {
  const end = ENDS_OF_REASONING.find((mark) => text.includes(mark));
  if (end === undefined) return { reasoning: text, answer: null, answerAt: 0 };
  const start = text.indexOf(end);
  const answerAt = start + end.length;
  return { reasoning: text.slice(0, start), answer: text.slice(answerAt), answerAt };
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
