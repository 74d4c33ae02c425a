// Markdown and LaTeX as elements. What a model wrote becomes text nodes: raw HTML is shown as it was written.

import { element } from "./dom.js";
import { BOXED } from "./generation.js";
import { Marked } from "./marked.esm.js";

const BLOCK_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
// A dollar sign before a digit ends no formula: from $5 to $10.
const INLINE_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d))/;
const BOX = new RegExp(`^${BOXED.source}`);

const rule = (name, level, pattern, begins, token) => ({
  name,
  level,
  start: (text) => {
    const at = text.search(begins);
    return at < 0 ? undefined : at;
  },
  tokenizer: (text) => {
    const found = pattern.exec(text);
    return found ? { type: name, raw: found[0], ...token(found) } : undefined;
  },
});

const formulaOf = ([, block, bracketed, inline, dollars]) => ({
  text: block ?? bracketed ?? inline ?? dollars,
  isBlock: (block ?? bracketed) !== undefined,
});

const parser = new Marked({
  breaks: true,
  extensions: [
    rule("formulas", "block", BLOCK_MATH, /\$\$|\\\[/, formulaOf),
    rule("formula", "inline", INLINE_MATH, /\$|\\[[(]/, formulaOf),
    rule("boxed", "inline", BOX, /\\boxed\{/, ([, text]) => ({ text })),
  ],
});

/** The elements of a text. */
export const markdown = (text) => all(parser.lexer(text));

const all = (tokens) => tokens.flatMap((token) => (KINDS[token.type] ?? plain)(token)).filter((node) => node !== null);
const inside = (tag, attributes = {}) => (token) => element(tag, attributes, ...all(token.tokens));
const plain = (token) => (token.tokens ? all(token.tokens) : token.text);
const raw = (token) => token.raw;

const KINDS = {
  space: () => null,
  def: () => null,
  paragraph: inside("p"),
  heading: (token) => element(`h${Math.min(6, token.depth + 3)}`, {}, ...all(token.tokens)),
  blockquote: inside("blockquote"),
  code: (token) => element("pre", {}, element("code", {}, token.text)),
  hr: () => element("hr"),
  list: (token) => element(token.ordered ? "ol" : "ul", listAttributes(token), ...token.items.map(inside("li"))),
  checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  table: (token) => element("table", {}, row("th", token.header), ...token.rows.map((cells) => row("td", cells))),
  strong: inside("strong"),
  em: inside("em"),
  del: inside("del"),
  codespan: (token) => element("code", {}, token.text),
  br: () => element("br"),
  link,
  image: raw,
  html: raw,
  formula,
  formulas: formula,
  boxed: ({ text }) => element("strong", { class: "boxed" }, /[\\^_]/.test(text) ? formula({ raw: text, text, isBlock: false }) : text),
};

const listAttributes = ({ ordered, start }) => (ordered && start > 1 ? { start } : {});

const row = (tag, cells) => element("tr", {}, ...cells.map(inside(tag)));

/** Only to the web; what else an address may do stays text. */
function link(token) {
  if (!/^https?:\/\//i.test(token.href)) return token.raw;
  return element("a", { href: token.href, rel: "noopener noreferrer nofollow", target: "_blank" }, ...all(token.tokens));
}

/** A formula as MathML; as it was written until the library is there, or where it cannot be read. */
function formula({ raw: written, text, isBlock }) {
  const node = element(isBlock ? "div" : "span", { class: "formula" }, written);
  library()
    .then((temml) => temml.render(text, node, { displayMode: isBlock, throwOnError: true }))
    .catch(() => (node.textContent = written));
  return node;
}

let loading = null;

/** Temml, loaded with the first formula. */
function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "/static/temml.min.js" });
    script.addEventListener("load", () => resolve(window.temml));
    script.addEventListener("error", reject);
    document.head.append(element("link", { rel: "stylesheet", href: "/static/Temml-Local.css" }), script);
  });
  return loading;
}
