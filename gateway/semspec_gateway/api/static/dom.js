// Building elements. Whatever a model wrote becomes a text node, never markup.

export const byId = (id) => document.getElementById(id);

/** An element with attributes (null, undefined and false are left out) and children: nodes or text. */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Text for screen readers alone. */
export const unseen = (text) => element("span", { class: "unseen" }, text);

/** A sign for eyes alone; words beside it say the same. */
export const mark = (sign) => element("span", { class: "mark", "aria-hidden": "true" }, sign);
