// The gateway's routes.

import { key } from "./key.js";

/** A refusal or a failure, with what may help. */
export class ApiError extends Error {
  constructor(message, { status = null, code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }

  /** From OpenAI's error object. */
  static of(error, status = null) {
    return new ApiError(error.message ?? "the server gave no reason", { status, code: error.code, param: error.param });
  }
}

/** Starts a streamed generation; the response's body is its events. */
export const complete = (body, signal) =>
  send("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

/** The events of a generation from the one after `lastEventId` on, or from its beginning. */
export const attach = (id, lastEventId, signal) =>
  send(`${generation(id)}/events?trace=true`, { headers: lastEventId === null ? {} : { "last-event-id": lastEventId }, signal });

export const cancel = (id) => send(`${generation(id)}/cancel`, { method: "POST" });

export const stored = (id) => json(generation(id));

export const trace = (id) => json(`${generation(id)}/trace`);

export const models = () => json("/v1/models");

export const session = async (name) => (await json(`/v1/sessions/${encodeURIComponent(name)}`)).turns;

export const forget = (name) => send(`/v1/sessions/${encodeURIComponent(name)}`, { method: "DELETE" });

export const sessions = async () => (await json("/v1/sessions")).data;

export const services = async (signal) => (await json("/v1/services", signal)).services;

const generation = (id) => `/v1/generations/${encodeURIComponent(id)}`;

const json = async (path, signal) => (await send(path, { signal })).json();

async function send(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: authorized(options.headers) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the gateway does not answer", { code: "unreachable" });
  }
  if (response.ok) return response;
  throw await refusal(response);
}

const authorized = (headers = {}) => (key() ? { ...headers, authorization: `Bearer ${key()}` } : headers);

async function refusal(response) {
  try {
    return ApiError.of((await response.json()).error, response.status);
  } catch {
    return new ApiError(`the server answered ${response.status} ${response.statusText}`, { status: response.status });
  }
}
