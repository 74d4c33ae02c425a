// A generation from its request to its end, over a connection that may break once.

import * as api from "./api.js";
import { BrokenStream, events } from "./sse.js";

const PAUSE_MS = 1000; // before asking again, so that a gateway that restarts is back

/** Streams `body`'s answer into `generation`, telling `changed` of each step. Throws: ApiError, AbortError. */
export async function generate(body, generation, changed, signal) {
  const response = await api.complete(body, signal);
  generation.id = response.headers.get("x-generation-id");
  await surviving(response, generation, changed, signal);
}

/** Goes on with one that runs, or was interrupted, from what was seen of it. Throws: ApiError, AbortError. */
export async function goOn(generation, changed, signal) {
  const response = await api.attach(generation.id, generation.lastEventId, signal);
  await surviving(response, generation, changed, signal);
  await complete(generation);
}

async function surviving(response, generation, changed, signal) {
  try {
    await follow(response, generation, changed);
  } catch (error) {
    if (!(error instanceof BrokenStream) || signal.aborted) throw error;
    await again(generation, changed, signal);
  }
}

async function again(generation, changed, signal) {
  if (generation.id === null) throw lost("before the answer began: send it again");
  changed("reconnecting");
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  try {
    await follow(await api.attach(generation.id, generation.lastEventId, signal), generation, changed);
  } catch (error) {
    if (error instanceof BrokenStream) throw lost("twice");
    throw error;
  }
  await complete(generation);
}

async function follow(response, generation, changed) {
  for await (const { id, data } of events(response)) {
    if (data === "[DONE]") return;
    generation.lastEventId = id ?? generation.lastEventId;
    generation.apply(JSON.parse(data));
    changed();
  }
  throw new BrokenStream("the stream ended without its last word");
}

/** What was missed between two connections, from the store. */
async function complete(generation) {
  if (generation.summary && generation.isWhole) return;
  const [meta, trace] = await Promise.all([api.stored(generation.id), api.trace(generation.id)]);
  generation.replace(trace.segments);
  generation.seed ??= meta.seed;
  generation.parameters ??= meta.parameters;
}

const lost = (when) => new api.ApiError(`the connection was lost ${when}`, { code: "connection_lost" });
