// A text as blocks of Markdown, with the segments it consists of in its margin. What grows is set once it is complete.

import { element, mark } from "./dom.js";
import { describe } from "./inspector.js";
import { blocks, elements, listTag } from "./markdown.js";

export const KINDS = {
  accepted: { sign: "✓", word: "accepted" },
  target: { sign: "✎", word: "by the target" },
  draft: { sign: "–", word: "draft, not judged" },
  flight: { sign: "◌", word: "not decided yet" },
};

/** How a segment is shown: by verdict, and by writer where nothing was judged. */
export function kind(record) {
  if (record.verdict === "accepted") return "accepted";
  return record.writer === "target" ? "target" : "draft";
}

/** What may become the mark of a list, a heading or a fence, and would be shown as something else until then. */
const UNCLEAR_END = /(?:^|\n)[ \t]*(?:[-=*+#>|`~]+|\d+[.)]?)[ \t]*$/;

/** One text on the page. Blocks that cannot change any more keep their elements while the rest grows. */
export class Prose {
  constructor(node) {
    this.node = node;
    /** Blocks, and items of lists, each with where it begins and ends in the text. */
    this.cells = [];
    this.text = "";
    this.isOpen = false;
    /** How much of the text, and how many cells, are set for good. */
    this.numFixed = 0;
    this.numFixedCells = 0;
    /** The record and generation behind each line in the margin. */
    this.behind = new WeakMap();
  }

  /** Show `text`, of which the first `numSure` characters stay. `segments`: where each begins and ends in it. */
  update(text, { segments = [], numSure = text.length, isOpen = false, generation = null } = {}) {
    const read = text.replaceAll("\r", " "); // of the same length, and as the parser counts it
    if (read !== this.text || isOpen !== this.isOpen) this.set(read, numSure, isOpen);
    this.annotate(segments, generation);
  }

  set(text, numSure, isOpen) {
    if (!text.startsWith(this.text.slice(0, this.numFixed))) this.numFixed = this.numFixedCells = 0;
    const former = this.cells.splice(this.numFixedCells);
    const added = this.cellsOf(text, isOpen, former);
    for (const { root } of former) if (!added.some((cell) => cell.root === root)) root.remove();
    for (const { root } of added) if (this.node.lastChild !== root) this.node.append(root);
    this.cells.push(...added);
    Object.assign(this, { text, isOpen });
    this.fix(numSure, isOpen);
  }

  /** Cells of the text after what is fixed. */
  cellsOf(text, isOpen, former) {
    const rest = text.slice(this.numFixed);
    const added = [];
    let start = this.numFixed;
    for (const token of blocks(isOpen ? rest.replace(UNCLEAR_END, "") : rest, isOpen)) {
      if (token.type === "list") added.push(...listCells(token, start, former));
      else if (token.type !== "space") added.push(cell(token, start, element("div", { class: "cell" }, ...elements([token]))));
      start += token.raw.length;
    }
    return added;
  }

  /** While the text grows, all but its last block are complete as far as the text is sure. */
  fix(numSure, isOpen) {
    const last = this.cells.at(-1)?.root;
    while (isOpen && this.numFixedCells < this.cells.length) {
      const { root } = this.cells[this.numFixedCells];
      const next = this.cells.findIndex((cell, index) => index > this.numFixedCells && cell.root !== root);
      if (root === last || this.cells[next].start >= numSure) return;
      this.numFixed = this.cells[next].start;
      this.numFixedCells = next;
    }
  }

  /** Mark in the margin of each cell the segments that its text is of. */
  annotate(segments, generation) {
    let first = 0;
    let hasStop = false; // of the Tab key; the arrow keys lead on
    for (const cell of this.cells) {
      while (first < segments.length && segments[first].end <= cell.start) first += 1;
      const own = [];
      for (let at = first; at < segments.length && segments[at].start < cell.end; at += 1) {
        const shared = this.text.slice(Math.max(segments[at].start, cell.start), Math.min(segments[at].end, cell.end));
        if (shared.trim()) own.push({ ...segments[at], length: shared.length });
      }
      this.mark(cell, own, generation, !hasStop);
      hasStop ||= cell.node.querySelector(":scope > .segments > button") !== null;
    }
  }

  get numSegments() {
    return this.node.querySelectorAll("button.segment").length;
  }

  mark(cell, segments, generation, isStop) {
    const shape = JSON.stringify([isStop, segments.map(({ index, kind, length }) => [index, kind, length])]);
    if (cell.shape !== shape) {
      const isStart = (segment) => !this.text.slice(Math.max(segment.start, 0), cell.start).trim();
      const lines = segments.map((segment, at) => line(segment, isStart(segment), isStop && at === 0));
      cell.margin?.remove();
      cell.margin = lines.length ? element("span", { class: "segments" }, ...lines) : null;
      if (cell.margin) cell.node.prepend(cell.margin);
    } else if (cell.parameters === generation?.parameters) return;
    Object.assign(cell, { shape, parameters: generation?.parameters });
    segments.forEach((segment, at) => this.explain(cell.margin.children[at], segment, generation));
  }

  /** Have a line of the margin say what became of its segment; by which rule is known at the end. */
  explain(line, { index, kind, record }, generation) {
    const about = record ? describe(record, generation.parameters) : KINDS[kind].word;
    if (line.localName === "button") line.setAttribute("aria-label", `Segment ${index + 1}: ${about}`);
    if (record) this.behind.set(line, { record, generation });
  }
}

/** The line beside the text of a segment: a button where the segment begins. */
function line({ index, kind, record, length }, isStart, isStop) {
  const attributes = { class: `segment ${kind}`, "data-index": record ? index : null };
  const node = isStart
    ? element("button", { ...attributes, type: "button", tabindex: isStop ? 0 : -1 }, mark(KINDS[kind].sign))
    : element("span", { ...attributes, "aria-hidden": "true" });
  node.style.flexGrow = String(length);
  return node;
}

/** `root` is what stands in the text for the block: the element itself, or the list that it is an item of. */
function cell({ raw }, start, node, root = node) {
  return { raw, start, end: start + raw.trimEnd().length, node, root, margin: null, shape: "" };
}

/** The items of a list. Of one that has grown, the items that are complete stay as they are. */
function listCells(token, start, former) {
  const [tag, attributes] = listTag(token);
  const before = former.filter((cell) => cell.root.localName === tag && cell.listStart === start);
  const root = before[0]?.root ?? element(tag, attributes);
  let at = start;
  const cells = token.items.map((item, index) => {
    const old = before[index];
    const isSame = old?.raw === item.raw && old.isLoose === token.loose;
    const made = isSame ? old : cell(item, at, element("li", { class: "cell" }, ...elements(item.tokens)), root);
    at += item.raw.length;
    return Object.assign(made, { listStart: start, isLoose: token.loose });
  });
  for (const { node } of before.slice(cells.length)) node.remove();
  cells.forEach(({ node }, index) => {
    const shown = root.children[index];
    if (shown === node) return;
    if (shown) shown.replaceWith(node);
    else root.append(node);
  });
  return cells;
}
