// Markdown and LaTeX as elements. What a model wrote becomes text nodes: raw HTML is shown as it was written.

import { element } from "./dom.js";
import { BOXED } from "./generation.js";
import { Marked } from "./marked.esm.js";

const BLOCK_MATH = /^[ \t]*(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n|$)/;
/** A formula that is still being written: what follows it may be part of it, blank lines included. */
const OPEN_BLOCK_MATH = /^[ \t]*(?:\$\$(?![\s\S]*\$\$)|\\\[(?![\s\S]*\\\]))[\s\S]*$/;
const LINE_OF_MATH = /(?<=^|\n)[ \t]*(?:\$\$|\\\[)/;
// A dollar sign before a digit ends no formula: from $5 to $10.
const INLINE_MATH = /^(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\]|\\\(([\s\S]+?)\\\)|\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d))/;
const ANY_MATH = new RegExp(INLINE_MATH.source.slice(1), "g");
const BOX = new RegExp(`^${BOXED.source}`);
/** Asterisks that multiply or raise to a power: 12*3, (a+b)*c, 2**10. Spaces around one make it so in CommonMark already. */
const OPERATOR = /(?<=[\w)\]}])(?<!_)(?:\*(?=[0-9A-Za-z([{\\])|\*\*(?=\d))/g;

/** An inline formula of more scrolls by itself. */
const WIDE_PX = 288;
const MOST_FORMULAS = 500; // kept as MathML

/** Whether the text being parsed is still being written. */
let isOpenText = false;

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

const openFormula = rule("formulas", "block", OPEN_BLOCK_MATH, LINE_OF_MATH, () => ({ text: null, isBlock: true }));

/** A text of the same length without what must not close an emphasis: operators, and asterisks in formulas. */
const emStrongMask = (text) =>
  text.replace(ANY_MATH, (formula) => "a".repeat(formula.length)).replace(OPERATOR, (sign) => "a".repeat(sign.length));

const parser = new Marked({
  breaks: true,
  extensions: [
    rule("formulas", "block", BLOCK_MATH, LINE_OF_MATH, formulaOf),
    { ...openFormula, tokenizer: (text) => (isOpenText ? openFormula.tokenizer(text) : undefined) },
    rule("formula", "inline", INLINE_MATH, /\$|\\[[(]/, formulaOf),
    rule("boxed", "inline", BOX, /\\boxed\{/, ([, text]) => ({ text })),
  ],
  hooks: { emStrongMask },
  // One tilde means "about": ~5 minutes.
  tokenizer: { del: (text) => (text.startsWith("~~") ? false : undefined) },
});

/** The blocks of a text, which together are all of it: tokens with `raw`. `isOpen`: it is still being written. */
export function blocks(text, isOpen = false) {
  isOpenText = isOpen;
  return parser.lexer(text);
}

/** The elements of some tokens. */
export const elements = (tokens) => tokens.flatMap((token) => (KINDS[token.type] ?? plain)(token)).filter((node) => node !== null);
const inside = (tag, attributes = {}) => (token) => element(tag, attributes, ...elements(token.tokens));
const plain = (token) => (token.tokens ? elements(token.tokens) : token.text);
const raw = (token) => token.raw;

const KINDS = {
  space: () => null,
  def: raw,
  paragraph: inside("p"),
  heading: (token) => element(`h${Math.min(6, token.depth + 3)}`, {}, ...elements(token.tokens)),
  blockquote: inside("blockquote"),
  code,
  hr: () => element("hr"),
  list: (token) => element(...listTag(token), ...token.items.map(inside("li"))),
  checkbox: (token) => (token.checked ? "☑ " : "☐ "),
  table: (token) => element("table", {}, row("th", token.header), ...token.rows.map((cells) => row("td", cells))),
  strong: inside("strong"),
  em: inside("em"),
  del: inside("del"),
  codespan: (token) => element("code", {}, token.text),
  br: () => element("br"),
  link,
  image: raw,
  html: (token) => (/^<br\s*\/?>\s*$/i.test(token.raw) ? element("br") : token.raw),
  formula,
  formulas: formula,
  boxed: ({ text }) => element("strong", { class: "boxed" }, /[\\^_]/.test(text) ? formula({ raw: text, text, isBlock: false }) : text),
};

/** The tag and the attributes of a list. */
export const listTag = ({ ordered, start }) => (ordered ? ["ol", start === 1 ? {} : { start }] : ["ul", {}]);

const row = (tag, cells) => element("tr", {}, ...cells.map(inside(tag)));

/** Code as it was written, with a button that copies it. */
function code({ text, lang }) {
  const button = element("button", { type: "button", class: "plain", "data-action": "copy-code" }, "Copy code");
  const head = element("p", { class: "code-head" }, element("span", {}, lang?.split(/\s/)[0] ?? ""), button);
  return element("div", { class: "code" }, head, element("pre", {}, element("code", {}, text)));
}

/** Only to the web; what else an address may do stays text. */
function link(token) {
  if (!/^https?:\/\//i.test(token.href)) return token.raw;
  return element("a", { href: token.href, title: token.href, rel: "noopener noreferrer nofollow", target: "_blank" }, ...elements(token.tokens));
}

/** A formula as MathML; as it was written until it is complete and the library is there, or where it cannot be read. */
function formula({ raw: written, text, isBlock }) {
  const node = element(isBlock ? "div" : "span", { class: "formula" }, written.trim());
  if (text === null) return node;
  library()
    .then((temml) => {
      node.replaceChildren(typeset(temml, text, isBlock));
      if (!isBlock) node.classList.toggle("wide", node.getBoundingClientRect().width > WIDE_PX);
    })
    .catch(() => (node.textContent = written));
  return node;
}

/** MathML by LaTeX: an answer is set again with each of its pieces. */
const typeset = (() => {
  const known = new Map();
  return (temml, text, isBlock) => {
    const key = `${isBlock}${text}`;
    if (!known.has(key)) {
      if (known.size >= MOST_FORMULAS) known.clear();
      const holder = element("span");
      temml.render(text, holder, { displayMode: isBlock, throwOnError: true, maxSize: [20, 50], maxExpand: 200 });
      known.set(key, holder);
    }
    return known.get(key).firstChild.cloneNode(true);
  };
})();

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
