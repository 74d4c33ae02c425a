"""Protobuf messages to core dataclasses and back: the only place that knows both.

`*_to_wire` trusts what it is given. `*_from_wire` checks everything and raises `InvalidRequest`, or `Mismatch` for
another state convention, naming the field at fault as a path such as `context[2].end`.

Nested messages are filled in place by `put_*`: handed to a constructor, protobuf would copy them level by level, which
for the states of a 32B model costs 4 ms instead of 0.03.
"""

from semspec.rpc.codec.common import ENDS_TO_WIRE, SEGMENTATIONS_TO_WIRE, WRITERS_TO_WIRE
from semspec.rpc.codec.generation import (
    proposal_from_wire,
    proposal_to_wire,
    propose_request_from_wire,
    propose_request_to_wire,
    write_request_from_wire,
    write_request_to_wire,
    written_from_wire,
    written_to_wire,
)
from semspec.rpc.codec.handshake import (
    encode_request_from_wire,
    encode_request_to_wire,
    encode_response_from_wire,
    encode_response_to_wire,
    model_info_from_wire,
    model_info_to_wire,
    tokenize_request_from_wire,
    tokenize_request_to_wire,
    tokenize_response_from_wire,
    tokenize_response_to_wire,
    verifier_info_from_wire,
    verifier_info_to_wire,
)
from semspec.rpc.codec.scoring import (
    ask_request_from_wire,
    ask_request_to_wire,
    ask_response_from_wire,
    ask_response_to_wire,
    judge_request_from_wire,
    judge_request_to_wire,
    judge_response_from_wire,
    judge_response_to_wire,
    read_request_from_wire,
    read_request_to_wire,
    read_response_from_wire,
    read_response_to_wire,
    verify_request_from_wire,
    verify_request_to_wire,
    verify_response_from_wire,
    verify_response_to_wire,
)

__all__ = [
    "ENDS_TO_WIRE",
    "SEGMENTATIONS_TO_WIRE",
    "WRITERS_TO_WIRE",
    "ask_request_from_wire",
    "ask_request_to_wire",
    "ask_response_from_wire",
    "ask_response_to_wire",
    "encode_request_from_wire",
    "encode_request_to_wire",
    "encode_response_from_wire",
    "encode_response_to_wire",
    "judge_request_from_wire",
    "judge_request_to_wire",
    "judge_response_from_wire",
    "judge_response_to_wire",
    "model_info_from_wire",
    "model_info_to_wire",
    "proposal_from_wire",
    "proposal_to_wire",
    "propose_request_from_wire",
    "propose_request_to_wire",
    "read_request_from_wire",
    "read_request_to_wire",
    "read_response_from_wire",
    "read_response_to_wire",
    "tokenize_request_from_wire",
    "tokenize_request_to_wire",
    "tokenize_response_from_wire",
    "tokenize_response_to_wire",
    "verifier_info_from_wire",
    "verifier_info_to_wire",
    "verify_request_from_wire",
    "verify_request_to_wire",
    "verify_response_from_wire",
    "verify_response_to_wire",
    "write_request_from_wire",
    "write_request_to_wire",
    "written_from_wire",
    "written_to_wire",
]
