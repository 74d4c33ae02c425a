// The numbers of a generation and the picture of its time.

import { spread } from "./comparison.js";
import { element, unseen } from "./dom.js";
import { count, rate, seconds, share, times } from "./format.js";
import { duration } from "./generation.js";
import { kind, KINDS } from "./prose.js";

/** One line about a generation, in the head of its decisions, which also says what the marks in the margin mean. */
export function numbersLine(generation) {
  const kinds = generation.kept.map(kind);
  const marks = Object.entries(KINDS).map(([name, { sign, word }]) => {
    const number = kinds.filter((found) => found === name).length;
    return number ? `${sign} ${number} ${word}` : "";
  });
  const parts = [generation.strategy, count(generation.kept.length, "segment"), ...marks, seconds(generation.latencyMs)];
  return parts.filter(Boolean).join(" · ");
}

/** The row of meters. `other` is the target alone on the same question, if it was asked; `pairs` are those of all seeds. */
export function meters(generation, other, pairs) {
  const judged = generation.numJudged ? `${generation.numAccepted} of ${generation.numJudged} drafts` : "nothing judged";
  return element(
    "dl",
    { class: "meters" },
    figure("Acceptance", share(generation.acceptance), judged, generation.acceptance),
    figure("By the target", share(generation.targetShare), `of ${generation.numTokens} tokens`, generation.targetShare),
    figure("Speed", rate(generation.tokensPerSecond), "tokens/s"),
    figure("Time", seconds(generation.latencyMs), timeNote(generation)),
    other ? (pairs.length > 1 ? speedUps(pairs) : speedUp(generation, other)) : null,
  );
}

function figure(name, value, note, level = null) {
  const meter = level === null ? null : element("meter", { min: 0, max: 1, value: level, "aria-label": name });
  return element("div", {}, element("dt", {}, name), element("dd", {}, element("strong", {}, value), meter, element("small", {}, note)));
}

function timeNote(generation) {
  if (generation.summary) return "on the server";
  if (generation.status === "running") return "and counting";
  return "sum of its stages";
}

function speedUp(generation, other) {
  if (other.status === "running") return figure("Speed-up", "–", "the target alone is running");
  if (!other.summary || !generation.summary) return figure("Speed-up", "–", "the comparison did not end");
  const ratio = other.latencyMs / generation.latencyMs;
  return figure("Speed-up", times(ratio), `target alone ${seconds(other.latencyMs)}; ${agreement(generation, other)}`);
}

function speedUps(pairs) {
  const { least, middle, most } = spread(pairs.map((pair) => pair.speed_up));
  return figure("Speed-up", times(middle), `median of ${pairs.length} seeds, ${times(least)} to ${times(most)}`);
}

/** The table of several seeds, with their spread; nothing for one seed. */
export function spreadTable(pairs) {
  if (pairs.length < 2) return "";
  const known = pairs.filter((pair) => pair.same !== null);
  const row = (tag, ...cells) => element("tr", {}, ...cells.map((cell) => element(tag, {}, cell)));
  const median = (name) => seconds(spread(pairs.map((pair) => pair[name])).middle);
  const table = element(
    "table",
    {},
    row("th", "Seed", "Answer", "Target alone", "Speed-up", "Same answer"),
    ...pairs.map((pair) =>
      row("td", String(pair.seed), seconds(pair.own_ms), seconds(pair.target_ms), times(pair.speed_up), agreed(pair.same)),
    ),
    row("th", "median", median("own_ms"), median("target_ms"), times(spread(pairs.map((pair) => pair.speed_up)).middle),
      `${known.filter((pair) => pair.same).length} of ${known.length}`),
  );
  return element("figure", { class: "spread" }, element("figcaption", {}, `${pairs.length} seeds; which of the two runs first alternates`), table);
}

const agreed = (same) => (same === null ? "–" : same ? "yes" : "no");

function agreement(generation, other) {
  if (generation.answer === null || other.answer === null) return "no answer to compare";
  return generation.answer === other.answer ? "same answer" : "another answer";
}

/** The time line: a row a generation, all on one scale, a block a segment; nothing before there is one. */
export function timeline(generations) {
  const busy = generations.filter((generation) => generation.kept.some(duration));
  if (!busy.length) return "";
  const longest = Math.max(...busy.map(total));
  const rows = busy.map((generation) => row(generation, longest));
  return element("figure", { class: "timeline" }, element("figcaption", {}, "Where the time went"), ...rows);
}

const total = (generation) => generation.kept.reduce((sum, record) => sum + duration(record), 0);

function row(generation, longest) {
  const strip = element("div", { class: "strip", "aria-hidden": "true" }, ...generation.kept.map(block));
  strip.style.width = `${(100 * total(generation)) / longest}%`;
  const spoken = unseen(`: ${seconds(total(generation))} for ${generation.kept.length} segments`);
  return element(
    "div",
    { class: "row" },
    element("span", { class: "name" }, generation.strategy ?? "answer", spoken),
    element("div", { class: "scale" }, strip),
    element("span", { class: "length", "aria-hidden": "true" }, seconds(total(generation))),
  );
}

function block(record) {
  const part = element("span", { class: `block ${kind(record)}`, "data-index": record.index });
  part.style.flexGrow = String(Math.max(duration(record), 0.001));
  return part;
}
