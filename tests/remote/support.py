"""The engine here, and the same engine with a server that writes for it."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from semspec.engine.causal_lm import CausalLM
from semspec.engine.torch_engine import TorchEngine
from semspec.protocols import Target
from semspec.remote.client import Api, Server
from semspec.remote.connect import connect
from semspec.remote.writer import RemoteWriter
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    SamplingParams,
    Segment,
    Writer,
)
from semspec_demo.problems import SPLITS, make_problem
from tests.helpers.fakes import collected
from tests.remote.servers import NAME, Script, serving

PROMPT = f"{make_problem(SPLITS['tune'][0]).question}\n\n<think>\n\n"
PARAGRAPH = GenerationParams(SamplingParams(0.6, 0.9, 5, seed=2**64 - 1))
TO_THE_END = GenerationParams(SamplingParams(0.0), max_segments=0, max_tokens=300)


@dataclass(frozen=True, slots=True)
class Local:
    """A model and the engine that runs it."""

    lm: CausalLM
    engine: TorchEngine

    def pieces(self, written: list[GeneratedSegment]) -> list[str]:
        """What a server that runs the model streams: one token a piece."""
        ids = [token for one in written for token in one.segment.token_ids]
        return [
            self.lm.tokenizer.token_text(token)
            for token in ids
            if token not in self.lm.tokenizer.eos_ids
        ]

    @asynccontextmanager
    async def written_by(
        self, api: Api, script: Script, timeout_s: float = 5.0
    ) -> AsyncIterator[Target]:
        """The engine with a server that says what the script does."""
        async with serving(api, script) as url:
            server = Server(api, url, NAME, "the-token", timeout_s, remedy="check this and that")
            async with aclosing(connect(server)) as client:
                yield RemoteWriter(self.engine, self.lm.tokenizer, client, Writer.TARGET)

    async def served(
        self, api: Api, script: Script, context: Context, params: GenerationParams
    ) -> list[GeneratedSegment]:
        """All that this engine writes in one call."""
        async with self.written_by(api, script) as remote:
            return await collected(remote.generate(context, params))


def segments(written: list[GeneratedSegment]) -> list[Segment]:
    return [one.segment for one in written]
