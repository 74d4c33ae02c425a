"""The wire's numbers for the words of `semspec.types`."""

from collections.abc import Sequence

from semspec.rpc.convert.checks import known
from semspec.types import Segmentation, SegmentEnd, Writer
from semspec.v1 import types_pb2

WRITERS_TO_WIRE = {
    Writer.USER: types_pb2.WRITER_USER,
    Writer.DRAFT: types_pb2.WRITER_DRAFT,
    Writer.TARGET: types_pb2.WRITER_TARGET,
}
ENDS_TO_WIRE = {
    SegmentEnd.BOUNDARY: types_pb2.SEGMENT_END_BOUNDARY,
    SegmentEnd.EOS: types_pb2.SEGMENT_END_EOS,
    SegmentEnd.LENGTH: types_pb2.SEGMENT_END_LENGTH,
}
SEGMENTATIONS_TO_WIRE = {
    Segmentation.PARAGRAPH: types_pb2.SEGMENTATION_PARAGRAPH,
    Segmentation.SENTENCE: types_pb2.SEGMENTATION_SENTENCE,
}
WRITERS_FROM_WIRE: dict[int, Writer] = {number: writer for writer, number in WRITERS_TO_WIRE.items()}
ENDS_FROM_WIRE: dict[int, SegmentEnd] = {number: end for end, number in ENDS_TO_WIRE.items()}
SEGMENTATIONS_FROM_WIRE: dict[int, Segmentation] = {number: kind for kind, number in SEGMENTATIONS_TO_WIRE.items()}


def segmentations_from_wire(numbers: Sequence[int]) -> tuple[Segmentation, ...]:
    """What a service says it can split at."""
    return tuple(known(SEGMENTATIONS_FROM_WIRE, number, f"segmentations[{i}]") for i, number in enumerate(numbers))
