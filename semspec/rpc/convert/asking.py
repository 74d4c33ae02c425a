"""`Ask`: a question with its one-token answers in, their probabilities out."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import check_filled, invalid
from semspec.rpc.convert.pieces import context_from_wire, put_piece
from semspec.types import ChoiceScores, Context
from semspec.v1 import target_pb2


def ask_request_to_wire(
    context: Context, question: str, prefill: str, options: Sequence[str], session: str
) -> target_pb2.AskRequest:
    """What the target is asked beside its work."""
    message = target_pb2.AskRequest(question=question, prefill=prefill, options=options, session=session)
    for piece in context.pieces:
        put_piece(message.context.add(), piece)
    return message


def ask_request_from_wire(message: target_pb2.AskRequest) -> tuple[Context, str, str, list[str], str]:
    """Context, question, prefill, options (at least one) and session hint of an `Ask` call."""
    if not message.question.strip():
        raise invalid("question", "is empty")
    check_filled(message.options, "options")
    context = context_from_wire(message.context)
    return context, message.question, message.prefill, list(message.options), message.session


def ask_response_to_wire(reply: ChoiceScores) -> target_pb2.AskResponse:
    """What the target would say first."""
    return target_pb2.AskResponse(
        probabilities=reply.probabilities, likeliest=reply.likeliest, duration_ms=reply.duration_ms
    )


def ask_response_from_wire(message: target_pb2.AskResponse, num_options: int) -> ChoiceScores:
    """What the target would say first, with a probability for each of `num_options` options."""
    if len(message.probabilities) != num_options:
        raise invalid("probabilities", f"{len(message.probabilities)}, but {num_options} options")
    for i, probability in enumerate(message.probabilities):
        if not 0 <= probability <= 1:
            raise invalid(f"probabilities[{i}]", f"must be in [0, 1], not {probability}")
    return ChoiceScores(tuple(message.probabilities), message.likeliest, message.duration_ms)
