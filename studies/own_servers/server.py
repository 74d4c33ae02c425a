"""An engine over an unmodified vLLM server: text and scores by `/v1/completions`."""

import json
from collections.abc import AsyncGenerator, Sequence
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any

import httpx
import torch

from semspec.engine.local import LocalEngine
from semspec.engine.logits import segment_surprisal
from semspec.engine.requests import Generate, Request, Result, Score, Writing
from semspec.engine.tokenization import ModelTokenizer
from semspec.errors import Mismatch, Unavailable
from semspec.types import ModelInfo, SegmentScore, States, Writer, derive_seed

ALTERNATIVES = 20
"""Alternatives that a stock server tells: entropy and margin are of these."""

NO_STATES = States(bytes(4), (1, 1), "none")


class ServerEngine(LocalEngine):
    """See `semspec.engine.protocol.Engine`; only `generate` and `score`, without states, grammars or penalties."""

    def __init__(self, url: str, model: str, tokenizer: ModelTokenizer, writer: Writer) -> None:
        super().__init__(tokenizer, writer, tokenizer.info)
        self._http = httpx.AsyncClient(base_url=url, timeout=600)
        self._model = model

    async def info(self) -> ModelInfo:
        return self.tokenizer.info

    async def read_probes(self) -> None: ...

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _results(self, tokens: list[int], request: Request, session: str) -> AsyncGenerator[Result, None]:
        start = perf_counter()
        match request:
            case Generate():
                writing = Writing(self.tokenizer, self._writer, request, tokens)
                async for token in self._written(tokens, request):
                    for one in writing.take(token):
                        yield Result(one, (perf_counter() - start) * 1e3, None)
                    if writing.is_done:
                        return
            case Score(lengths=lengths):
                yield Result(await self.scores(tokens, lengths), (perf_counter() - start) * 1e3, None)
            case _:
                raise Mismatch(f"a stock server has no {request.kind}")

    async def scores(
        self, tokens: Sequence[int], lengths: Sequence[int], alternatives: int = ALTERNATIVES
    ) -> list[SegmentScore]:
        """Scores of the segments that the tokens end with. The server reads all tokens again, cached or not."""
        how = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": alternatives}
        answer = await self._asked("/v1/completions", {"model": self._model, "prompt": tokens, **how})
        told = answer["choices"][0]["prompt_logprobs"]
        own = [_statistics(*one) for one in list(zip(tokens, told, strict=True))[-sum(lengths) :]]
        ends = pairwise(accumulate(lengths, initial=0))
        features = [segment_surprisal(torch.tensor(own[begin:end])) for begin, end in ends]
        return [
            SegmentScore(NO_STATES, tuple(one.tolist()), size, 0.0) for one, size in zip(features, lengths, strict=True)
        ]

    async def next_token(self, tokens: Sequence[int]) -> None:
        """Have the server read all tokens and write one."""
        await self._asked("/v1/completions", {"model": self._model, "prompt": tokens, "max_tokens": 1})

    async def _asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self._http.post(path, json=body)
        if answer.is_error:
            raise Unavailable(answer.text)
        found: dict[str, Any] = answer.json()
        return found

    async def _written(self, tokens: list[int], request: Generate) -> AsyncGenerator[int, None]:
        params = request.params
        sampling = params.sampling
        body = {
            "model": self._model, "prompt": tokens, "stream": True, "return_token_ids": True,
            "max_tokens": params.max_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "seed": derive_seed(sampling.seed, self._writer, len(tokens)) % 2**63,
            "stop": ["\n\n"] if params.max_segments == 1 else None,
        }  # fmt: skip
        async with self._http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise Unavailable(str(chunk["error"]))
                for token in chunk["choices"][0]["token_ids"] or ():
                    yield token


def _statistics(token: int, told: dict[str, Any]) -> list[float]:
    """As `token_statistics`, of the alternatives told alone."""
    logprobs = torch.tensor([one["logprob"] for one in told.values()])
    own, probabilities = told[str(token)]["logprob"], logprobs.exp()
    entropy = -(probabilities * logprobs).nan_to_num().sum()
    margin = torch.tensor(own).exp() - probabilities.square().sum()
    return [own, float(entropy), float(told[str(token)]["rank"] == 1), float(margin)]
