"""A response of OpenAI's Responses API, and its events: reasoning, message and calls as items of the output."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from semspec.errors import SemspecError
from semspec.gateway.api.openai.completions import statistics
from semspec.gateway.api.openai.conversion import AnswerOptions
from semspec.gateway.api.openai.formats import ResponseTool, ResponseToolChoice
from semspec.gateway.api.openai.responses_models import (
    CallItem,
    Incomplete,
    Item,
    ItemStatus,
    MessageItem,
    ModelResponse,
    OutputText,
    Part,
    ReasoningEffort,
    ReasoningItem,
    ReasoningPart,
    ResponseArguments,
    ResponseArgumentsDelta,
    ResponseDelta,
    ResponseItem,
    ResponsePart,
    ResponseState,
    ResponseText,
    ResponseUsage,
)
from semspec.gateway.api.shared.errors import error_body
from semspec.gateway.api.shared.variables import Effort
from semspec.gateway.generation.output import ChoiceOutput, Ended, Kept, usage
from semspec.gateway.generation.parsers import Delta, ToolCall
from semspec.gateway.generation.request import Request
from semspec.types import Drafted, FinishReason

Kind = Literal["reasoning", "message"]


class ResponseOptions(AnswerOptions):
    """What a response repeats of its request."""

    previous_response_id: str | None
    effort: Effort | None
    tools: list[ResponseTool]
    tool_choice: ResponseToolChoice
    parallel_tool_calls: bool


class ResponsesApiFormat:
    """`POST /v1/responses`, and its events: the reasoning, if there is any, and the message."""

    last_line: str | None = None

    def __init__(self, request: Request, options: Mapping[str, Any], system_fingerprint: str) -> None:
        self._request = request
        self._options = ResponseOptions.model_validate(options)
        self._num_events = self._num_items = 0
        self._is_open = False
        """Whether the last text is an item that goes on."""
        self._texts: list[tuple[Kind, str]] = []
        """Kind and text so far of each item of the output that is a text."""

    def opening(self, index: int) -> list[BaseModel]:
        response = self._response("in_progress", [])
        created = ResponseState(type="response.created", response=response, sequence_number=self._next())
        return [created, ResponseState(type="response.in_progress", response=response, sequence_number=self._next())]

    def drafted(self, event: Drafted) -> list[BaseModel]:
        return []

    def text(self, index: int, event: Kept | Ended) -> list[BaseModel]:
        return list(self._added(event.delta))

    def closing(self, index: int, ended: Ended, outputs: Sequence[ChoiceOutput]) -> list[BaseModel]:
        response = self._whole(outputs[0])
        events = [] if self._num_items else list(self._opened("message"))
        if self._is_open:
            events += self._closed(response.output[-1].status)
        kind: Any = f"response.{response.status}"
        return [*events, ResponseState(type=kind, response=response, sequence_number=self._next())]

    def response(self, outputs: Sequence[ChoiceOutput]) -> BaseModel:
        return self._whole(outputs[0])

    def error(self, error: SemspecError) -> BaseModel:
        return error_body(error)

    def stored(self, output: ChoiceOutput) -> ModelResponse:
        """A response without statistics, whose times are not stored."""
        status: ItemStatus = "incomplete" if output.finish_reason is FinishReason.LENGTH else "completed"
        calls = [_call_item(call, call.arguments, "completed") for call in output.seen.calls]
        texts = _split(output.seen) or ([] if calls else [("message", "")])
        statuses: list[ItemStatus] = ["completed"] * len(texts)
        if texts:
            statuses[-1] = status
        items = [self._item(*text, own) for text, own in zip(texts, statuses, strict=True)]
        return self._response(status, [*items, *calls], output)

    def _whole(self, output: ChoiceOutput) -> ModelResponse:
        return self.stored(output).model_copy(update=statistics([output], self._request, self._options.trace))

    def _response(self, status: ItemStatus, items: list[Item], output: ChoiceOutput | None = None) -> ModelResponse:
        request, options = self._request, self._options
        return ModelResponse(
            parallel_tool_calls=options.parallel_tool_calls,
            tool_choice=options.tool_choice,
            tools=options.tools,
            id=request.id,
            created_at=request.created,
            status=status,
            error=None,
            incomplete_details=Incomplete(reason="max_output_tokens") if status == "incomplete" else None,
            instructions=request.instructions or None,
            max_output_tokens=request.max_tokens,
            model=request.model,
            output=items,
            previous_response_id=options.previous_response_id,
            reasoning=ReasoningEffort(effort=options.effort) if options.effort else None,
            temperature=request.plan.sampling.temperature,
            top_p=request.plan.sampling.top_p,
            usage=None if output is None else _usage(output),
        )

    def _added(self, delta: Delta) -> Iterator[BaseModel]:
        """The events of the next text; a text of the other kind closes the item before it."""
        for kind, text in _split(delta):
            if not self._is_open or self._texts[-1][0] != kind:
                yield from self._closed("completed") if self._is_open else ()
                yield from self._opened(kind)
            self._texts[-1] = (kind, self._texts[-1][1] + text)
            name: Any = "response.reasoning_text.delta" if kind == "reasoning" else "response.output_text.delta"
            yield ResponseDelta(type=name, delta=text, **self._place(), sequence_number=self._next())
        for call in delta.calls:
            yield from self._called(call)

    def _called(self, call: ToolCall) -> Iterator[BaseModel]:
        """The events of a call, which closes the text before it."""
        if self._is_open:
            yield from self._closed("completed")
        index, self._num_items = self._num_items, self._num_items + 1
        begun, done = _call_item(call, "", "in_progress"), _call_item(call, call.arguments, "completed")
        yield self._item_event("added", index, begun)
        place: dict[str, Any] = {"item_id": begun.id, "output_index": index}
        yield ResponseArgumentsDelta(delta=call.arguments, **place, sequence_number=self._next())
        yield ResponseArguments(name=call.name, arguments=call.arguments, **place, sequence_number=self._next())
        yield self._item_event("done", index, done)

    def _item_event(self, name: str, index: int, item: Item) -> ResponseItem:
        kind: Any = f"response.output_item.{name}"
        return ResponseItem(type=kind, output_index=index, item=item, sequence_number=self._next())

    def _opened(self, kind: Kind) -> Iterator[BaseModel]:
        self._texts.append((kind, ""))
        self._num_items, self._is_open = self._num_items + 1, True
        item, place = self._item(kind, None, "in_progress"), self._place()
        yield self._item_event("added", place["output_index"], item)
        yield ResponsePart(
            type="response.content_part.added", part=_part(kind, ""), **place, sequence_number=self._next()
        )

    def _closed(self, status: ItemStatus) -> Iterator[BaseModel]:
        """The events that end the last item."""
        (kind, text), place = self._texts[-1], self._place()
        self._is_open = False
        name: Any = "response.reasoning_text.done" if kind == "reasoning" else "response.output_text.done"
        yield ResponseText(type=name, text=text, **place, sequence_number=self._next())
        yield ResponsePart(
            type="response.content_part.done", part=_part(kind, text), **place, sequence_number=self._next()
        )
        yield self._item_event("done", place["output_index"], self._item(kind, text, status))

    def _place(self) -> dict[str, Any]:
        """Where the open item's text is."""
        return {"item_id": self._item_id(self._texts[-1][0]), "output_index": self._num_items - 1, "content_index": 0}

    def _item_id(self, kind: str) -> str:
        return f"{'rs' if kind == 'reasoning' else 'msg'}-{self._request.id.partition('-')[2]}"

    def _item(self, kind: str, text: str | None, status: ItemStatus) -> Item:
        """An item with its one part; without any, if `text` is None."""
        if kind == "reasoning":
            reasoning = [] if text is None else [ReasoningPart(text=text)]
            return ReasoningItem(id=self._item_id(kind), content=reasoning, status=status)
        content = [] if text is None else [OutputText(text=text)]
        return MessageItem(id=self._item_id(kind), content=content, status=status)

    def _next(self) -> int:
        self._num_events += 1
        return self._num_events - 1


def _call_item(call: ToolCall, arguments: str, status: ItemStatus) -> CallItem:
    id = f"fc-{call.id.partition('-')[2]}"
    return CallItem(id=id, call_id=call.id, name=call.name, arguments=arguments, status=status)


def _split(text: Delta) -> list[tuple[Kind, str]]:
    """The parts of a text that are not empty, in order."""
    parts: list[tuple[Kind, str]] = [("reasoning", text.reasoning), ("message", text.content)]
    return [part for part in parts if part[1]]


def _part(kind: str, text: str) -> Part:
    return ReasoningPart(text=text) if kind == "reasoning" else OutputText(text=text)


def _usage(output: ChoiceOutput) -> ResponseUsage:
    counts = usage([output])
    return ResponseUsage(
        input_tokens=counts["prompt_tokens"],
        input_tokens_details=counts.get("prompt_tokens_details"),
        output_tokens=counts["completion_tokens"],
        output_tokens_details=counts["completion_tokens_details"],
        total_tokens=counts["total_tokens"],
    )
