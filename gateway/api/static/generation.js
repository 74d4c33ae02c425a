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
    /** Segments drafted and not yet decided, by index. */
    this.inFlight = new Map();
    /** Text of the segment that the target is writing. */
    this.openText = "";
    /** Whether the last text of such a segment was reasoning. */
    this.isReasoning = false;
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
    const delta = chunk.choices?.[0]?.delta;
    if (own.writing !== undefined) this.write(delta.reasoning_content ?? "", delta.content ?? "");
    if (own.drafted) this.draft(own.drafted);
    if (own.segment) this.keep(own.segment);
    if (own.id) this.finish(own);
  }

  draft({ index, segments }) {
    this.forget(index);
    segments.forEach((segment, offset) => this.inFlight.set(index + offset, segment));
  }

  /** Take in the next text of a segment. The mark between its parts, which the server leaves out, is put back. */
  write(reasoning, content) {
    this.isReasoning ||= reasoning !== "";
    const mark = this.isReasoning && content !== "" ? ENDS_OF_REASONING[0] : "";
    if (mark) this.isReasoning = false;
    this.openText += reasoning + mark + content;
  }

  keep(record) {
    this.openText = "";
    if (parted(record.text).answer !== null) this.isReasoning = false;
    this.records[record.index] = record;
    if (record.verdict === "accepted") this.inFlight.delete(record.index);
    else this.forget(record.index); // what was drafted after a refused segment is void
  }

  finish(summary) {
    this.openText = "";
    this.summary = summary;
    this.seed = summary.seed;
    this.parameters = summary.parameters;
    if (summary.trace) this.replace(summary.trace);
  }

  /** The records as the store has them. */
  replace(records) {
    this.records = records;
    this.inFlight.clear();
  }

  end(status) {
    this.status = status;
    this.openText = "";
    this.inFlight.clear();
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

  /** What it says after the reasoning; all of it where no reasoning ends. */
  get said() {
    return (parted(this.text).answer ?? this.text).trim();
  }

  /** All text so far. */
  get text() {
    return this.kept.map((record) => record.text).join("") + this.openText;
  }

  /** The reasoning before that. */
  get reasoning() {
    const { reasoning, answer } = parted(this.text);
    return answer === null ? "" : reasoning.trim();
  }

  /** What stands in `\boxed{}` after the reasoning, or else all that stands there; null while that goes on. */
  get answer() {
    const answer = parted(this.text).answer?.trim();
    return answer ? (BOXED.exec(answer)?.[1] ?? answer) : null;
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
  if (end === undefined) return { reasoning: text, answer: null };
  const start = text.indexOf(end);
  return { reasoning: text.slice(0, start), answer: text.slice(start + end.length) };
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
