"""`make demo-probes`: the bundled pair's probes, by the stages of `training` with the demo language's exact parser."""

import argparse
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from demo.meaning import Proposition, is_valid
from demo.problems import SPLITS, make_problem
from demo.wording import read
from semspec.core import Message, Sampling, Segmentation
from semspec.engine.causal_lm import CausalLM
from semspec.probes.features import FeatureSet, LayerSet, assemble
from semspec.probes.probe import Probe, ProbeCard, save_probe
from training.cluster import cluster_segments
from training.contexts import ProbeContext, TraceRecipe, read_contexts, write_contexts
from training.evaluate import regression, verification
from training.files import digest, read_lines
from training.label import Labels, label
from training.sample import read_rows, read_states, sample_shards, shard_paths
from training.train import FitRecipe, fit, predict

log = logging.getLogger("demo.train_probes")


class ParserEquivalence:
    """Two steps mean the same iff they state the same proposition."""

    def clusters(self, context: ProbeContext, segments: Sequence[str]) -> list[int]:
        last_day = len(make_problem(context.source).events)
        numbers: dict[Proposition, int] = {}
        return [numbers.setdefault(read(segment, last_day), len(numbers)) for segment in segments]

    def is_valid(self, context: ProbeContext, segment: str) -> bool | None:
        problem = make_problem(context.source)
        last_day = len(problem.events)
        history = [read(step, last_day) for step in context.reasoning.split("\n\n") if step]
        return is_valid(problem, history, read(segment, last_day))
