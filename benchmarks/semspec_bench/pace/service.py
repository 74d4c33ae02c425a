"""A draft or target service with paced steps, for `semspec bench run --pace`; never for serving.

python -m semspec_bench.pace.service draft|target TABLE DILATION FOLDER [GPU], with the settings of the service in the
environment. Counts of steps are in FOLDER/ROLE-PID.counts. Services that name the same GPU, a file in FOLDER, share it.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from semspec.protocols import Engine
from semspec.rpc.server import run
from semspec.rpc.servicers import DraftServicer, ModelServicer, TargetServicer
from semspec.settings import load_settings
from semspec.types import Writer
from semspec_bench.pace.counts import CountsFile
from semspec_bench.pace.gpu import SLICE_S, GpuFile
from semspec_bench.pace.paced import PacedStep, load_paced
from semspec_bench.pace.table import load_times
from semspec_draft.__main__ import load as load_draft
from semspec_draft.settings import DraftSettings
from semspec_target.__main__ import load as load_target
from semspec_target.settings import TargetSettings


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    role, table, dilation, folder, *gpu = arguments
    settings: DraftSettings | TargetSettings
    servicer: type[ModelServicer]
    load: Callable[[], Engine]
    if role == Writer.DRAFT:
        settings, servicer = load_settings(DraftSettings), DraftServicer
        load = partial(load_draft, settings)
    else:
        settings, servicer = load_settings(TargetSettings), TargetServicer
        load = partial(load_target, settings)
    torch.set_num_threads(settings.threads or 1)
    with closing(CountsFile(Path(folder) / f"{role}-{os.getpid()}.counts")) as counts:
        shared = GpuFile(Path(folder) / gpu[0], float(dilation) * SLICE_S) if gpu else None
        step = PacedStep(load_times(Path(table)), float(dilation), counts.write, gpu=shared)
        run(servicer(partial(load_paced, load, step)), settings)


if __name__ == "__main__":
    main(sys.argv[1:])
