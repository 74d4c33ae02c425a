"""The order of things: every stage, what it needs, and how long it may take."""

from dataclasses import asdict

import torch

from bench.gpu.decode import measure_decode
from bench.gpu.environment import gpu_state
from bench.gpu.judge import measure_judge
from bench.gpu.light import Light, measure_light
from bench.gpu.models import Pair, build
from bench.gpu.parity import measure_parity
from bench.gpu.read import measure_reads
from bench.gpu.record import Facts, Record
from bench.gpu.replay import NEEDS, Replays
from bench.gpu.shapes import Scale, fitted
from bench.gpu.speedup import PUBLISHED, at_floors, computed, speedups
from bench.gpu.timing import Timer

LIGHT_S, PARITY_S, MODELS_S, DECODE_S, READ_S, JUDGE_S = 10.0, 15.0, 60.0, 60.0, 90.0, 15.0
"""Seconds that must be left for a stage to begin; one that repeats itself ends when they are over."""


class Bench:
    """Runs the stages on one device."""

    def __init__(self, record: Record, scale: Scale, device: torch.device) -> None:
        self._record, self._scale, self._device = record, scale, device
        self._timer = Timer(device)
        # Made by the stages "speed of light" and "models" for the later ones, which need those.
        self._light: Light
        self._pair: Pair

    def run(self) -> None:
        stage, needs = self._record.stage, ("speed of light", "models")
        stage("speed of light", LIGHT_S, self._measure_light)
        stage("parity", PARITY_S, lambda: measure_parity(self._device))
        stage("models", MODELS_S, self._build_models)
        stage("decode", DECODE_S, self._measure_decode, needs)
        stage("read", READ_S, self._measure_reads, needs)
        stage("judge", JUDGE_S, lambda: measure_judge(self._timer, self._pair, JUDGE_S), needs)
        if all(self._record.facts(need) is not None for need in NEEDS):
            Replays(self._record, self._timer, self._scale, self._pair).run()
        stage("speed-ups", 0.0, self._compute_speedups, ("target alone", "read", "judge"))

    def _measure_light(self) -> Facts:
        self._light, facts = measure_light(self._timer, self._scale, LIGHT_S)
        return facts | {"gpu": gpu_state(self._device)}

    def _build_models(self) -> Facts:
        """Both models; the target with as many layers as fit."""
        scale, target_shape = self._scale, self._scale.target
        draft = build(scale.draft, self._device, scale.window)
        if self._device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(self._device)[0]
            target_shape = fitted(scale.target, free_bytes - scale.reserve_bytes)
        self._pair = Pair(draft, build(target_shape, self._device, scale.window))
        return {
            "weights": "random, bf16",
            "target_layers_left_out": scale.target.num_layers - target_shape.num_layers,
        } | {
            role: asdict(model.shape) | {"weight_bytes": model.shape.weight_bytes}
            for role, model in (("draft", draft), ("target", self._pair.target))
        }

    def _measure_decode(self) -> Facts:
        facts = measure_decode(self._timer, self._scale, self._pair, self._light, DECODE_S)
        return facts | {"gpu": gpu_state(self._device)}

    def _measure_reads(self) -> Facts:
        return measure_reads(self._timer, self._scale, self._pair.target, self._light, READ_S)

    def _compute_speedups(self) -> Facts:
        """From the replays there are; at the floors in any case."""
        names = [f"replay {point.target_ratio}" for point in PUBLISHED]
        replays = [facts for name in names if (facts := self._record.facts(name))]
        stages = [*computed(replays, self._record.needed("judge"), self._record.needed("read"))] if replays else []
        length, context = self._scale.segment_tokens, self._scale.contexts[0]
        floors = ("every stage at its floor", at_floors(self._pair, self._light, length, context))
        return speedups([*stages, floors])
