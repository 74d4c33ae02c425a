"""Segments from a text-generation-inference server: its shapes over a real socket, a real model behind them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from semspec.demo.documents import write_document
from semspec.demo.problems import SPLITS
from semspec.demo.wording import DRAFT_AUTHOR
from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest
from semspec.stack import BUNDLED_PAIR
from semspec.training.config import ServerSampler
from semspec.training.data.writers import CachedModel, EngineWriter, ServerWriter, WritingRecipe
from semspec.types import Context, Message, SamplingParams, Segmentation, SegmentEnd, Writer

SEEDS = list(range(6))


@contextmanager
def tgi(lm: CausalLM, seen: list[dict[str, Any]]) -> Iterator[str]:
    """A server that streams one token an event, as TGI does; yields its address."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                seen.append(body)
                events = list(self._events(body["inputs"], body["parameters"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in events:
                self.wfile.write(f"data:{json.dumps(event)}\n\n".encode())

        def _events(self, prompt: str, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
            context = lm.tokenizer.encode(prompt).token_ids
            sampling = SamplingParams(parameters["temperature"], parameters["top_p"], seed=parameters["seed"])
            tokens, limit = list[int](), parameters["max_new_tokens"]
            while len(tokens) < limit and not (tokens and tokens[-1] in lm.tokenizer.eos_ids):
                batch = ContextBatch(lm, [*context, *tokens])
                [one] = batch.sample(sampling, [sampling.seed], Segmentation.PARAGRAPH, 1)
                tokens += one.token_ids
                is_end = tokens[-1] in lm.tokenizer.eos_ids
                reason = "eos_token" if is_end else "length" if len(tokens) == limit else None
                details = {"finish_reason": reason, "generated_tokens": len(tokens), "input_length": len(context)}
                text = lm.tokenizer.token_text(tokens[-1])
                yield {
                    "index": len(tokens),
                    "token": {"id": tokens[-1], "text": text, "logprob": 0.0, "special": is_end},
                    "generated_text": "all of it" if reason else None,
                    "details": details if reason else None,
                }

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(("num_steps", "max_tokens", "end"), [(0, 60, "boundary"), (0, 5, "length"), (-1, 60, "eos")])
def test_tgi_segments_are_those_of_the_engine(num_steps: int, max_tokens: int, end: str) -> None:
    lm = CausalLM.load(str(BUNDLED_PAIR / "draft"), None, "cpu", "float32")
    document = write_document(SPLITS["tune"][0], DRAFT_AUTHOR)
    steps = document.segments[: num_steps or -len(document.segments)]
    prompt = lm.tokenizer.encode([Message("user", document.problem.question)])
    text = prompt.text + "".join(f"{step}\n\n" for step in steps)
    context, seen = Context((lm.tokenizer.encode(text),)), list[dict[str, Any]]()
    recipe = WritingRecipe(SamplingParams(1.0, 0.9), max_segment_tokens=max_tokens)
    local = EngineWriter(CachedModel(lm, 3), Writer.DRAFT, recipe).generate(context, SEEDS)
    with tgi(lm, seen) as address:
        writer = ServerWriter(ServerSampler(backend="tgi", base_url=address), Writer.DRAFT, recipe, lm.tokenizer)
        served = writer.generate(context, SEEDS)
    assert [(one.text, one.end) for one in served] == [(one.text, one.end) for one in local]
    assert SegmentEnd(end) in {one.end for one in served}
    for one, other in zip(served, local, strict=True):
        assert one.writer is Writer.DRAFT and tuple(lm.tokenizer.read_ids(one, is_first=False)) == other.token_ids
    assert {body["parameters"]["seed"] for body in seen} == set(SEEDS)
    assert all(body["inputs"] == text for body in seen)


def test_missing_key_is_told_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    config = ServerSampler(backend="tgi", base_url="http://127.0.0.1:9", api_key_env="SOME_KEY")
    with pytest.raises(InvalidRequest, match="SOME_KEY is not set"):
        ServerWriter(
            config,
            Writer.DRAFT,
            WritingRecipe(SamplingParams()),
            CausalLM.load(str(BUNDLED_PAIR / "draft"), None, "cpu", "float32").tokenizer,
        )
