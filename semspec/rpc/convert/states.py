"""Tensors, and the pooled states they hold."""

import math
from collections.abc import Sequence

from semspec.errors import Mismatch
from semspec.rpc.convert.checks import invalid
from semspec.types import STATE_CONVENTION, States
from semspec.v1 import types_pb2

_FLOAT_BYTES = 4


def put_states(message: types_pb2.States, states: States) -> None:
    """Fill in pooled states."""
    put_tensor(message.pooled, states.data, states.shape)
    message.model = states.model
    message.convention = STATE_CONVENTION


def states_from_wire(message: types_pb2.States, field: str) -> States:
    """Pooled states `[num_layers + 1, hidden_size]`; the bytes are taken as they are."""
    if message.convention != STATE_CONVENTION:
        raise Mismatch(
            f"{field}.convention: must be {STATE_CONVENTION!r}, not {message.convention!r}", f"{field}.convention"
        )
    shape = tuple(message.pooled.shape)
    if len(shape) != 2:
        raise invalid(f"{field}.pooled.shape", f"must have two dimensions, not {len(shape)}")
    data = tensor_from_wire(message.pooled, f"{field}.pooled")
    return States(data, shape, message.model)


def put_tensor(message: types_pb2.Tensor, data: bytes, shape: Sequence[int]) -> None:
    """Fill in little-endian fp32 values."""
    message.data = data
    message.data_type = types_pb2.Tensor.DATA_TYPE_FLOAT32
    message.shape.extend(shape)


def tensor_from_wire(message: types_pb2.Tensor, field: str) -> bytes:
    """The raw bytes, once type and length agree with the shape."""
    if message.data_type != types_pb2.Tensor.DATA_TYPE_FLOAT32:
        raise invalid(f"{field}.data_type", "must be DATA_TYPE_FLOAT32")
    if 0 in message.shape:
        raise invalid(f"{field}.shape", "no dimension may be 0")
    data, num_bytes = message.data, _FLOAT_BYTES * math.prod(message.shape)
    if len(data) != num_bytes:
        raise invalid(f"{field}.data", f"{len(data)} bytes, but shape {list(message.shape)} takes {num_bytes}")
    return data
