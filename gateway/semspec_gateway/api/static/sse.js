// Server-sent events out of a fetched response. EventSource cannot send a body, nor a Last-Event-ID of our choice.

/** The connection ended before the stream did. */
export class BrokenStream extends Error {}

/** Yields `{id, data}`; `id` is null until the server gives one, then the last it gave. Throws: BrokenStream. */
export async function* events(response) {
  let id = null;
  let data = [];
  for await (const line of lines(response.body)) {
    if (line === "") {
      if (data.length) yield { id, data: data.join("\n") };
      data = [];
    } else if (line.startsWith("data:")) {
      data.push(line.slice(5).replace(/^ /, ""));
    } else if (line.startsWith("id:")) {
      id = line.slice(3).trim();
    }
  }
}

async function* lines(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (let chunk = await read(reader); !chunk.done; chunk = await read(reader)) {
      const received = rest + decoder.decode(chunk.value, { stream: true });
      const parts = received.split(/\r\n|\n|\r(?!$)/); // a CR at the end of what was received may be half of a CRLF
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {}); // what is left of a stream that nobody reads any more
  }
}

async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new BrokenStream("the connection was lost", { cause: error });
  }
}
