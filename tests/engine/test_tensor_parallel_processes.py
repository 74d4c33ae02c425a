"""What cannot be split is refused by name; the processes of a split model end together."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from semspec.engine.causal_lm import CausalLM
from semspec.engine.protocol import load_engine
from semspec.engine.tensor_parallel.split import Split
from semspec.errors import Mismatch, Unavailable
from semspec.rpc.clients import RemoteTarget
from semspec.services.target.settings import TargetSettings
from semspec.types import Context, Piece, Writer
from tests.engine.models import TOKENIZER, random_model
from tests.engine.test_equivalence import PROMPT, params

SETTING = "SEMSPEC_TARGET_TENSOR_PARALLEL"
GENEROUS_S = 120.0
LONG = params(max_segments=0, max_tokens=500, max_segment_tokens=5)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"num_key_value_heads": 1}, "1 key heads .* set SEMSPEC_TARGET_TENSOR_PARALLEL to one of 1$"),
        ({"num_key_value_heads": 4, "intermediate_size": 66}, "SEMSPEC_TARGET_TENSOR_PARALLEL to one of 1, 2$"),
        ({"hidden_act": "gelu"}, "gelu.*; set SEMSPEC_TARGET_TENSOR_PARALLEL to 1$"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised; set SEMSPEC_TARGET_TENSOR_PARALLEL to 1$"),
    ],
)
def test_model_that_cannot_be_split_so_says_what_to_set(changes: dict[str, object], remedy: str) -> None:
    model: PreTrainedModel = random_model("llama", **{k: v for k, v in changes.items() if k != "quantization_config"})
    model.config.update(changes)
    with pytest.raises(Mismatch, match=remedy):
        Split(4, SETTING).check(model, "tiny")


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"engine": "transformers"}, "the transformers engine runs a model in one process"),
        ({"device": "cuda:1"}, "takes the first 2 GPUs, not cuda:1"),
        ({"device": "cuda"}, r"is 2, but torch.cuda.device_count\(\) is 1"),
        ({"device": "cpu", "tensor_parallel": 4}, "set SEMSPEC_TARGET_TENSOR_PARALLEL to one of 1, 2$"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(
    fields: dict[str, object], refusal: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    settings = TargetSettings.model_validate({"model": str(checkpoints["qwen2"]), "tensor_parallel": 2, **fields})
    with pytest.raises(Mismatch, match=f"(?s)(?=.*SEMSPEC_TARGET_TENSOR_PARALLEL).*{refusal}"):
        load_engine(settings, Writer.TARGET)


def test_checkpoint_without_a_weight_is_refused_and_no_worker_stays(tmp_path: Path) -> None:
    model = random_model("qwen2")
    weights: dict[str, Tensor] = {name: weight for name, weight in model.state_dict().items() if "2.mlp.up" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    TOKENIZER.save_pretrained(tmp_path)
    before = set(psutil.Process().children())
    with pytest.raises(Mismatch, match=r"has no model\.layers\.2\.mlp\.up_proj\.weight"):
        CausalLM.load(str(tmp_path), None, "cpu", "float32", split=Split(2, SETTING))
    assert set(psutil.Process().children()) == before


class Service:
    """A target service of two ranks as a process of its own."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._port_file, self._log = folder / "port", folder / "log"
        environment = {
            "SEMSPEC_TARGET_MODEL": str(model),
            "SEMSPEC_TARGET_PORT": "0",
            "SEMSPEC_TARGET_PORT_FILE": str(self._port_file),
            "SEMSPEC_TARGET_DEVICE": "cpu",
            "SEMSPEC_TARGET_TENSOR_PARALLEL": "2",
            "SEMSPEC_TARGET_SETTLE_S": "0",
        }
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "semspec.services.target"]
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)

    async def ready(self) -> None:
        async with asyncio.timeout(GENEROUS_S):
            while not self._port_file.exists():
                assert self.process.poll() is None, self.log
                await asyncio.sleep(0.05)
        [self.worker] = psutil.Process(self.process.pid).children()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncIterator[object]]:
        """A stream of which the first segment has come."""
        target = RemoteTarget(f"127.0.0.1:{self._port_file.read_text().strip()}")
        prompt = Context((Piece(PROMPT, tuple(TOKENIZER.encode(PROMPT)), (await target.info()).tokenizer),))
        async with aclosing(target.generate(prompt, LONG)) as stream:
            await anext(stream)
            yield stream
        await target.aclose()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        psutil.wait_procs([self.worker] if hasattr(self, "worker") else [], GENEROUS_S)


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[list[Service]]:
    """One for each test to end, started at once: most of it is waiting for each other's ranks."""
    services = [Service(tmp_path_factory.mktemp("service"), checkpoints["qwen2"]) for _ in range(3)]
    yield services.copy()
    for service in services:
        service.end()


@pytest.fixture
async def service(services: list[Service]) -> Service:
    service = services.pop()
    await service.ready()
    return service


async def test_killed_worker_ends_a_service_in_the_middle_of_a_segment(service: Service) -> None:
    with pytest.raises(Unavailable):
        async with service.writing() as stream:
            service.worker.send_signal(signal.SIGKILL)
            async for _ in stream:
                pass
    assert await asyncio.to_thread(service.process.wait, GENEROUS_S) == 1
    assert f"rank 1 of 2, process {service.worker.pid}, ended with SIGKILL" in service.log


async def test_workers_end_with_a_service_that_is_killed_in_the_middle_of_a_segment(service: Service) -> None:
    with pytest.raises(Unavailable):
        async with service.writing() as stream:
            service.process.kill()
            async for _ in stream:
                pass
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [service.worker], GENEROUS_S)
    assert gone == [service.worker]


async def test_all_ranks_end_in_order_on_sigterm(service: Service) -> None:
    service.process.terminate()
    assert await asyncio.to_thread(service.process.wait, GENEROUS_S) == 0
    assert not service.worker.is_running()
    assert "Traceback" not in service.log and "level=CRITICAL" not in service.log
