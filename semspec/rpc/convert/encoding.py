"""`Encode`: a prompt in, its tokens out."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import check_filled, invalid
from semspec.rpc.convert.pieces import piece_from_wire, put_piece
from semspec.types import Message, Piece
from semspec.v1 import target_pb2

_ROLES = ("system", "user", "assistant")


def encode_request_to_wire(prompt: str | Sequence[Message]) -> target_pb2.EncodeRequest:
    """A text as it is, or a conversation to be rendered."""
    if isinstance(prompt, str):
        return target_pb2.EncodeRequest(text=prompt)
    turns = [target_pb2.Message(role=turn.role, content=turn.content) for turn in prompt]
    return target_pb2.EncodeRequest(conversation=target_pb2.Conversation(messages=turns))


def encode_request_from_wire(message: target_pb2.EncodeRequest) -> str | list[Message]:
    """A text as it is, or a conversation to be rendered."""
    match message.WhichOneof("prompt"):
        case "text":
            return message.text
        case "conversation":
            return _messages_from_wire(message.conversation.messages)
        case _:
            raise invalid("prompt", "give a text or a conversation")


def _messages_from_wire(turns: Sequence[target_pb2.Message]) -> list[Message]:
    check_filled(turns, "conversation.messages")
    for i, turn in enumerate(turns):
        if turn.role not in _ROLES:
            raise invalid(f"conversation.messages[{i}].role", f"must be one of {_ROLES}, not {turn.role!r}")
    return [Message(turn.role, turn.content) for turn in turns]  # type: ignore[arg-type]  # one of _ROLES


def encode_response_to_wire(prompt: Piece) -> target_pb2.EncodeResponse:
    """The tokenized prompt."""
    message = target_pb2.EncodeResponse()
    put_piece(message.prompt, prompt)
    return message


def encode_response_from_wire(message: target_pb2.EncodeResponse) -> Piece:
    """The tokenized prompt."""
    return piece_from_wire(message.prompt, "prompt")
