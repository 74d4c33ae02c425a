"""The names inside vLLM that `semspec.engine.vllm.internals` depends on. A failure names what a new version changed."""

import importlib
import inspect
from typing import Any

import pytest
from vllm.outputs import CompletionOutput, RequestOutput

from semspec.engine.settings import VllmOptions
from semspec.engine.vllm.internals import keep_results
from semspec.engine.vllm.requests import KEY

PARAMETERS = {
    "vllm.v1.core.sched.scheduler:Scheduler._get_local_prefix_cache_hit": None,
    "vllm.v1.core.sched.scheduler:Scheduler._update_request_with_output": [
        "self", "request", "new_token_ids", "is_stale",
    ],
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ["self", "scheduler_output", "model_runner_output"],
    "vllm.v1.core.kv_cache_manager:KVCacheManager.truncate_computed_blocks": None,
    "vllm.v1.worker.gpu_worker:Worker.load_model": None,
    "vllm.v1.worker.gpu_worker:Worker.execute_model": ["self", "scheduler_output"],
    "vllm.v1.worker.gpu_worker:Worker.sample_tokens": ["self", "grammar_output"],
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner.get_model": ["self"],
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.get_model": ["self"],
    "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.apply": ["self", "logits", "ctx"],
    "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.add_request": [
        "self", "req_idx", "sampling_params",
    ],
    "vllm.v1.outputs:AsyncModelRunnerOutput.get_output": ["self"],
    "vllm.outputs:RequestOutput.add": ["self", "next_output", "aggregate"],
    "vllm.model_executor.models.interfaces:SupportsEagle3.set_aux_hidden_state_layers": ["self", "layers"],
}  # fmt: skip
"""Methods that are called or overridden, with their parameters where these are passed on."""

FIELDS = {
    "vllm.v1.core.sched.output:SchedulerOutput": {
        "scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "finished_req_ids",
    },
    "vllm.v1.core.sched.output:NewRequestData": {
        "req_id", "prompt_token_ids", "sampling_params", "num_computed_tokens",
    },
    "vllm.v1.core.sched.output:CachedRequestData": {"req_ids", "num_computed_tokens"},
    "vllm.v1.outputs:ModelRunnerOutput": {"req_ids", "sampled_token_ids"},
    "vllm.v1.worker.gpu_model_runner:ExecuteModelState": {"hidden_states", "aux_hidden_states", "logits"},
    "vllm.v1.worker.gpu.model_runner:ExecuteModelState": {"hidden_states", "aux_hidden_states", "input_batch"},
    "vllm.v1.worker.gpu.input_batch:InputBatch": {"req_ids", "query_start_loc_np"},
    "vllm.v1.engine:EngineCoreOutput": {"request_id", "finish_reason", "kv_transfer_params", "new_token_ids"},
    "vllm.engine.arg_utils:AsyncEngineArgs": {*VllmOptions.model_fields, "cudagraph_capture_sizes"},
}  # fmt: skip

ATTRIBUTES = {
    "vllm.v1.worker.gpu_worker:Worker": {"model_runner", "use_v2_model_runner"},
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": {
        "execute_model_state", "use_aux_hidden_state_outputs", "input_batch", "query_start_loc",
    },
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": {
        "execute_model_state", "use_aux_hidden_state_outputs", "sampler",
    },
    "vllm.v1.worker.gpu.sample.sampler:Sampler": {"logits_processors", "needs_logits_processing"},
}  # fmt: skip
"""Attributes that are set in a constructor."""


def resolve(path: str) -> Any:
    """Return the object at `MODULE:NAME`."""
    module, _, names = path.partition(":")
    value: Any = importlib.import_module(module)
    for name in names.split("."):
        assert hasattr(value, name), f"vLLM has no {path} any more"
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", PARAMETERS)
def test_method_has_its_parameters(path: str) -> None:
    method, expected = resolve(path), PARAMETERS[path]
    if expected is not None:
        assert list(inspect.signature(method).parameters) == expected, path


@pytest.mark.parametrize("path", FIELDS)
def test_class_has_its_fields(path: str) -> None:
    known = {
        name for base in resolve(path).__mro__ for name in vars(base).get("__annotations__", ())
    }
    missing = FIELDS[path] - known
    assert not missing, f"{path} has no {missing} any more"


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_object_has_its_attributes(path: str) -> None:
    source = inspect.getsource(resolve(path))
    missing = {name for name in ATTRIBUTES[path] if f"self.{name}" not in source}
    assert not missing, f"{path} has no {missing} any more"


def test_merged_outputs_keep_the_results_of_both() -> None:
    keep_results()
    keep_results()  # a second patch would add each result twice
    merged, last = output([1]), output([])
    last.kv_transfer_params = None
    merged.add(output([2, 3]), aggregate=True)
    merged.add(last, aggregate=True)
    assert merged.kv_transfer_params == {KEY: [1, 2, 3]}


def output(results: list[int]) -> RequestOutput:
    completion = CompletionOutput(
        index=0, text="", token_ids=[], cumulative_logprob=None, logprobs=None
    )
    return RequestOutput(
        "r", None, [], None, [completion], finished=False, kv_transfer_params={KEY: results}
    )
