"""Text of open segments and stop sequences between peers of different versions, and after a loss."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from semspec.errors import Unavailable
from semspec.rpc.clients import RemoteTarget
from semspec.rpc.servicers import TargetServicer
from semspec.types import (
    Context,
    GeneratedSegment,
    GenerationParams,
    OpenText,
    Segment,
    SegmentEnd,
    Writer,
)
from semspec.v2 import target_pb2, types_pb2
from tests.helpers.fakes import FakeModel, collected
from tests.helpers.pools import LENIENT, NOVEL, PROMPT, session_at, targets
from tests.helpers.rpc import serving

STOPPED = replace(NOVEL, stops=("says",), splits_reasoning=True)


class Earlier(TargetServicer):
    """A service that does not know the fields of streamed text and stops, which it skips as unknown ones."""

    def __init__(self, model: FakeModel) -> None:
        super().__init__(lambda: model)
        self.ends: list[int] = []
        """How the segments that it was asked to score end."""

    async def Generate(
        self, request: types_pb2.GenerateRequest
    ) -> AsyncGenerator[types_pb2.GenerateResponse, None]:
        for field in ("stops", "splits_reasoning", "streams_text"):
            request.ClearField(field)
        async with aclosing(super().Generate(request)) as responses:
            async for response in responses:
                assert not response.HasField("open_text")
                yield response

    async def Score(self, request: target_pb2.ScoreRequest) -> target_pb2.ScoreResponse:
        self.ends += [segment.end for segment in request.segments]
        return await super().Score(request)


class Recording(FakeModel):
    """A target that remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(Writer.TARGET)
        self.asked: list[GenerationParams] = []

    def generate(
        self, context: Context, params: GenerationParams
    ) -> AsyncGenerator[GeneratedSegment, None]:
        self.asked.append(params)
        return super().generate(context, params)


async def test_text_and_stops_reach_the_service_and_the_text_comes_back() -> None:
    model = Recording()
    async with targets(model) as (target, _):
        shown = [one async for one in target.stream(PROMPT, STOPPED)]
        assert [one async for one in FakeModel(Writer.TARGET).stream(PROMPT, STOPPED)] == [
            replace(one, num_cached_tokens=None) if isinstance(one, GeneratedSegment) else one
            for one in shown
        ]
        assert await collected(target.generate(PROMPT, STOPPED)) == [
            one for one in shown if isinstance(one, GeneratedSegment)
        ]
    assert {(one.stops, one.splits_reasoning) for one in model.asked} == {(("says",), True)}


async def test_service_of_an_earlier_version_writes_segments_alone() -> None:
    model = Recording()
    async with (
        serving(Earlier(model)) as server,
        aclosing(RemoteTarget(server.address, LENIENT)) as target,
    ):
        received = [one async for one in target.stream(PROMPT, STOPPED)]
    assert received == await collected(FakeModel(Writer.TARGET).generate(PROMPT, NOVEL))
    assert model.asked[0].stops == ()


async def test_service_of_an_earlier_version_scores_a_segment_that_a_stop_ended() -> None:
    """It would not know that end."""
    servicer = Earlier(Recording())
    segment = Segment("draft says", tuple(b"draft says"), "bytes", Writer.DRAFT, SegmentEnd.STOP)
    async with (
        serving(servicer) as server,
        aclosing(RemoteTarget(server.address, LENIENT)) as target,
    ):
        assert len(await target.score(PROMPT, [segment])) == 1
    assert servicer.ends == [types_pb2.SEGMENT_END_LENGTH]


async def test_text_begins_again_at_another_replica_after_a_loss() -> None:
    """What both send of the segment is the same, and `start` tells what is known."""

    class Breaking(FakeModel):
        async def stream(
            self, context: Context, params: GenerationParams
        ) -> AsyncGenerator[GeneratedSegment | OpenText, None]:
            async with aclosing(super().stream(context, params)) as stream:
                for _ in range(5):
                    yield await anext(stream)
            raise Unavailable("broken in the second segment")

    async with targets(Breaking(Writer.TARGET), FakeModel(Writer.TARGET)) as (
        target,
        (first, second),
    ):
        params = replace(NOVEL, session=session_at(first, second))
        received = [one async for one in target.stream(PROMPT, params)]
    whole = await collected(FakeModel(Writer.TARGET).generate(PROMPT, params))
    assert [one for one in received if isinstance(one, GeneratedSegment)] == whole
    texts = iter([one.segment.text for one in whole])
    text = next(texts)
    for one in received:
        if isinstance(one, OpenText):
            assert text[one.start : one.start + len(one.text)] == one.text
        else:
            text = next(texts, "")
    assert sum(one.start == 0 for one in received if isinstance(one, OpenText)) == len(whole) + 1
