"""`Tokenize`: a text in, its tokens and their places out."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import invalid
from semspec.types import Token
from semspec.v1 import target_pb2


def tokenize_request_to_wire(text: str) -> target_pb2.TokenizeRequest:
    """A text as it is."""
    return target_pb2.TokenizeRequest(text=text)


def tokenize_request_from_wire(message: target_pb2.TokenizeRequest) -> str:
    """A text as it is, which may be empty."""
    return message.text


def tokenize_response_to_wire(tokens: Sequence[Token]) -> target_pb2.TokenizeResponse:
    """The tokens of a text."""
    message = target_pb2.TokenizeResponse()
    for token in tokens:
        message.tokens.add(id=token.id, text=token.text, start=token.start, stop=token.stop)
    return message


def tokenize_response_from_wire(message: target_pb2.TokenizeResponse) -> list[Token]:
    """The tokens of a text."""
    for i, token in enumerate(message.tokens):
        if token.stop < token.start:
            raise invalid(f"tokens[{i}].stop", f"is {token.stop}, before its start at {token.start}")
    return [Token(token.id, token.text, token.start, token.stop) for token in message.tokens]
