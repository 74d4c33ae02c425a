"""Messages of `Info`: what a service serves."""

from semspec.rpc.codec.common import (
    SEGMENTATIONS_TO_WIRE,
    invalid,
    probability,
    segmentations_from_wire,
)
from semspec.types import ModelInfo, OperatingPoint, ProbeProjections, VerifierInfo
from semspec.v1 import types_pb2, verifier_pb2


def model_info_to_wire(info: ModelInfo) -> types_pb2.ModelInfo:
    """Handshake of a model service."""
    return types_pb2.ModelInfo(
        model=info.model,
        fingerprint=info.fingerprint,
        tokenizer=info.tokenizer,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        max_context_tokens=info.max_context_tokens,
        state_convention=info.state_convention,
        segmentations=[SEGMENTATIONS_TO_WIRE[kind] for kind in info.segmentations],
        build=info.build,
        can_be_asked=info.supports_choices,
        tells_logprobs=info.supports_logprobs,
        cache_bytes=info.cache_bytes,
        max_cache_bytes=info.max_cache_bytes,
        chat_template=info.chat_template,
        template_variables=info.template_variables,
        takes_grammars=info.supports_grammars,
        takes_min_p=info.supports_min_p,
        datastore=info.datastore,
        datastore_model=info.datastore_model,
        takes_penalties=info.supports_penalties,
        num_token_ids=info.num_token_ids,
        projections=info.projections,
    )


def model_info_from_wire(message: types_pb2.ModelInfo) -> ModelInfo:
    """Handshake of a model service."""
    return ModelInfo(
        model=message.model,
        fingerprint=message.fingerprint,
        tokenizer=message.tokenizer,
        num_layers=message.num_layers,
        hidden_size=message.hidden_size,
        max_context_tokens=message.max_context_tokens,
        state_convention=message.state_convention,
        segmentations=segmentations_from_wire(message.segmentations),
        build=message.build,
        supports_choices=message.can_be_asked,
        supports_logprobs=message.tells_logprobs,
        cache_bytes=message.cache_bytes,
        max_cache_bytes=message.max_cache_bytes,
        chat_template=message.chat_template,
        template_variables=tuple(message.template_variables),
        supports_grammars=message.takes_grammars,
        supports_min_p=message.takes_min_p,
        datastore=message.datastore,
        datastore_model=message.datastore_model,
        supports_penalties=message.takes_penalties,
        num_token_ids=message.num_token_ids,
        projections=tuple(message.projections),
    )


def verifier_info_to_wire(info: VerifierInfo) -> verifier_pb2.VerifierInfo:
    """Handshake of the verifier."""
    return verifier_pb2.VerifierInfo(
        draft_model=info.draft_model,
        target_model=info.target_model,
        state_convention=info.state_convention,
        segmentations=[SEGMENTATIONS_TO_WIRE[kind] for kind in info.segmentations],
        build=info.build,
        draft_probe=info.draft_probe,
        target_probe=info.target_probe,
        alternatives=info.alternatives,
        operating_points=[_point_to_wire(point) for point in info.operating_points],
        draft_tokenizer=info.draft_tokenizer,
        target_tokenizer=info.target_tokenizer,
        projections=[
            verifier_pb2.ProbeProjections(probes=one.probes, draft=one.draft, target=one.target)
            for one in info.projections
        ],
        equivalence=info.equivalence,
    )


def verifier_info_from_wire(message: verifier_pb2.VerifierInfo) -> VerifierInfo:
    """Handshake of the verifier."""
    return VerifierInfo(
        draft_model=message.draft_model,
        target_model=message.target_model,
        state_convention=message.state_convention,
        segmentations=segmentations_from_wire(message.segmentations),
        build=message.build,
        draft_probe=message.draft_probe,
        target_probe=message.target_probe,
        alternatives=tuple(message.alternatives),
        operating_points=tuple(
            _point_from_wire(point, f"operating_points[{i}]") for i, point in enumerate(message.operating_points)
        ),
        draft_tokenizer=message.draft_tokenizer,
        target_tokenizer=message.target_tokenizer,
        projections=tuple(ProbeProjections(one.probes, one.draft, one.target) for one in message.projections),
        equivalence=message.equivalence,
    )


def _point_to_wire(point: OperatingPoint) -> verifier_pb2.OperatingPoint:
    return verifier_pb2.OperatingPoint(
        threshold=point.threshold,
        acceptance=point.acceptance,
        right_accepted=point.right_accepted,
        wrong_accepted=point.wrong_accepted,
        speed_up=point.speed_up,
    )


def _point_from_wire(message: verifier_pb2.OperatingPoint, field: str) -> OperatingPoint:
    for name in ("threshold", "speed_up"):
        if not 0 <= getattr(message, name) < float("inf"):
            raise invalid(f"{field}.{name}", f"must be finite and at least 0, not {getattr(message, name)}")
    for name in ("acceptance", "right_accepted", "wrong_accepted"):
        probability(getattr(message, name), f"{field}.{name}")
    return OperatingPoint(
        threshold=message.threshold if message.HasField("threshold") else None,
        acceptance=message.acceptance,
        right_accepted=message.right_accepted if message.HasField("right_accepted") else None,
        wrong_accepted=message.wrong_accepted if message.HasField("wrong_accepted") else None,
        speed_up=message.speed_up if message.HasField("speed_up") else None,
    )
