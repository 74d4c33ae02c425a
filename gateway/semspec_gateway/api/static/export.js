// What can be saved: all that is known of the answers, as JSON, or the conversation as Markdown.

import { element } from "./dom.js";

/** Parameters, statistics and records of a turn's answer; those of the target alone and the messages before, if there are any. */
export function exported({ own, other, pairs }, session, messages) {
  return {
    ...facts(own),
    ...(session ? { session } : {}),
    ...(messages.length ? { turns: messages } : {}),
    ...(pairs.length > 1 ? { comparison: pairs } : {}),
    ...(other ? { target_alone: facts(other) } : {}),
  };
}

function facts(generation) {
  const { id, model, prompt, seed, status, parameters, kept: segments } = generation;
  const { trace: _, ...summary } = generation.summary ?? {};
  return { id, model, prompt, seed, status, parameters, summary, segments };
}

/** Have the browser save a text as a file. */
export function save(text, type, name) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}
