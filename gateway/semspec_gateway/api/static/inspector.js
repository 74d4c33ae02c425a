// Everything a record says of one segment: as a sentence for screen readers, and as a table beside the text.

import { element } from "./dom.js";
import { count, measure, milliseconds } from "./format.js";

const STAGES = { draft_ms: "draft", read_ms: "read", judge_ms: "judge", write_ms: "write", wire_ms: "incl. wire" };
const ENDS = { boundary: "a boundary", eos: "the end of the text", length: "its token budget" };

/** What became of a segment and why, in one or two sentences. */
export function describe(record, parameters) {
  const tokens = `${count(record.num_tokens, "token")} by the ${record.writer}.`;
  const why = reason(record, parameters);
  const judged = isJudged(record) ? ` ${judgedValues(record, parameters)}.` : "";
  return `${outcome(record)}, ${tokens}${judged}${why ? ` ${why}` : ""}`;
}

function judgedValues(record, parameters) {
  const p = measure(record.target_probability);
  return isByLikelihood(parameters) ? `probability ${p}` : `p ${p}, q ${measure(record.draft_probability)}, ratio ${ratio(record)}`;
}

function outcome(record) {
  if (record.verdict === "accepted") return "Accepted draft";
  if (record.verdict === "rewritten") return "Rewritten by the target";
  return record.writer === "target" ? "Written by the target" : "Draft, never judged";
}

/** The decision as the acceptance rule took it. */
function reason(record, parameters) {
  if (record.fallback) return `The target wrote alone: ${record.fallback}.`;
  if (typeof record.repeats === "number") return `Refused: the draft repeats ${repeated(record)}.`;
  if (!isJudged(record) || !parameters?.acceptance) return "";
  const accepted = record.verdict === "accepted";
  const { rule, threshold } = parameters.acceptance;
  const byLikelihood = isByLikelihood(parameters);
  if (byLikelihood || rule === "threshold") {
    const limit = typeof threshold === "number" ? `the threshold ${measure(threshold)}` : "the calibrated threshold";
    const value = byLikelihood ? "the probability" : "the ratio";
    return `${accepted ? "Kept" : "Refused"}: ${value} ${accepted ? "reaches" : "is below"} ${limit}.`;
  }
  const chance = measure(Math.min(1, record.ratio ?? 1));
  return `${accepted ? "Kept" : "Refused"}: the draw ${measure(record.draw)} ${accepted ? "fell under" : "did not fall under"} min(1, p/q) = ${chance}.`;
}

const repeated = (record) => (record.repeats === record.index ? "itself" : `segment ${record.repeats + 1}`);

/** The panel beside the text. */
export class Inspector {
  constructor(panel) {
    this.panel = panel;
    this.clear();
  }

  clear() {
    this.panel.classList.remove("open");
    this.panel.replaceChildren(
      element("h2", {}, "Segment"),
      element("p", { class: "hint" }, "Point at the line beside a text, or reach it with the Tab and arrow keys, to see how it was decided."),
    );
  }

  show({ record, generation }) {
    const close = element("button", { type: "button", class: "plain close", "aria-label": "Close the details" }, "Close");
    close.addEventListener("click", () => this.clear());
    const why = reason(record, generation.parameters);
    this.panel.replaceChildren(
      element("div", { class: "label-line" }, element("h2", {}, `Segment ${record.index + 1}`), close),
      element("p", { class: `outcome ${record.verdict} ${record.writer}` }, outcome(record)),
      ...(why ? [element("p", { class: "why" }, why)] : []),
      table(record.rejected ? "Judgement of the refused draft" : "Judgement", judgement(record, generation.parameters)),
      refused(record),
      table("Text", text(record)),
      stages(record.times ?? {}),
    );
    this.panel.classList.add("open");
  }
}

/** The draft that the target replaced. */
function refused({ rejected }) {
  if (!rejected) return nothing();
  return element("section", { class: "refused" }, element("h3", {}, "Refused draft"), element("p", {}, rejected.text.trim()));
}

const isJudged = (record) => typeof record.target_probability === "number";

const isByLikelihood = (parameters) => parameters?.strategy === "likelihood";

const ratio = (record) => (record.ratio === null ? "∞" : measure(record.ratio));

function judgement(record, parameters) {
  if (!isJudged(record)) return [];
  if (isByLikelihood(parameters)) return [["probability, from the target’s likelihoods", measure(record.target_probability)]];
  return [
    ["p, target’s probability of this meaning", measure(record.target_probability)],
    ["q, draft’s", measure(record.draft_probability)],
    ["ratio p/q", ratio(record)],
    [parameters?.acceptance?.rule === "threshold" ? "draw, not used by this rule" : "draw", measure(record.draw)],
  ];
}

function text(record) {
  const rows = [["written by", record.writer], ["tokens", record.num_tokens], ["ended at", ENDS[record.end] ?? record.end]];
  if (record.rejected) rows.push(["tokens of refused draft", record.rejected.num_tokens]);
  if (record.num_proposed_tokens) {
    rows.push(["tokens proposed, kept", `${record.num_proposed_tokens}, ${record.num_accepted_tokens}`]);
  }
  return rows;
}

/** A captioned list of names and values; nothing if it has no rows. */
function table(caption, rows) {
  if (!rows.length) return nothing();
  const pairs = rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value))));
  return element("section", {}, element("h3", {}, caption), element("dl", {}, ...pairs));
}

const nothing = () => document.createDocumentFragment();

function stages(times) {
  const rows = Object.entries(STAGES).filter(([stage]) => times[stage]);
  const longest = Math.max(...rows.map(([stage]) => times[stage]));
  if (!rows.length) return nothing();
  const bars = rows.map(([stage, name]) => {
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * times[stage]) / longest}%`;
    const track = element("span", { class: "track" }, bar);
    return element("div", { class: stage }, element("dt", {}, name), element("dd", {}, track, milliseconds(times[stage])));
  });
  return element("section", { class: "stages" }, element("h3", {}, "Time waited for"), element("dl", {}, ...bars));
}
