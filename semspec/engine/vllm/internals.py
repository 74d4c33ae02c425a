"""All code that depends on vLLM's internals: two classes that `AsyncEngineArgs` names, a logits processor and a patch.

vLLM's processes load this module by name. vLLM chooses its Model Runner: V2, or V1 without Triton. `SemspecWorker`
uses private names of both; `tests/vllm/live_internals.py` reports those that a version lacks.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import AsyncModelRunnerOutput
from vllm.v1.request import RequestStatus
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from semspec.engine.checkpoint import load_tokenizer
from semspec.engine.grammars import Grammars
from semspec.engine.tokenization import ModelTokenizer
from semspec.engine.vllm.calls import first_row
from semspec.engine.vllm.recorder import Chunk, Outcome, Recorder
from semspec.engine.vllm.requests import KEY, MODEL, request_in
from semspec.probes.projection import Projections

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class SemspecScheduler(Scheduler):
    """Makes vLLM compute the rows that requests need, ends completed requests, and sends results with the outputs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._outcomes: dict[str, Outcome] = {}
        """Outcomes of the step whose output is being processed."""
        self._first_rows: dict[str, int | None] = {}
        self._unsent: dict[str, list[int]] = {}
        """Tokens of outputs that were left out; they are sent later, because vLLM's metrics count sent tokens."""

    def _get_local_prefix_cache_hit(self, request: Any, *limits: Any) -> tuple[Any, ...]:
        """Leave out the cached rows that `request` needs. `limits`: of vLLM 0.33."""
        blocks, num_tokens, *others = super()._get_local_prefix_cache_hit(request, *limits)
        first = self._first_row(request)
        if first is not None and num_tokens > first:
            num_tokens = first // self.block_size * self.block_size
            blocks = self.kv_cache_manager.truncate_computed_blocks(blocks, num_tokens)
        return blocks, num_tokens, *others

    def _first_row(self, request: Any) -> int | None:
        if request.request_id not in self._first_rows:
            parsed = request_in(request.sampling_params)
            self._first_rows[request.request_id] = (
                first_row(parsed, request.num_prompt_tokens) if parsed else None
            )
        return self._first_rows[request.request_id]

    def _update_request_with_output(
        self, request: Any, new_token_ids: list[int], is_stale: bool = False
    ) -> tuple[list[int], bool]:
        token_ids, is_stopped = super()._update_request_with_output(
            request, new_token_ids, is_stale
        )
        outcome = self._outcomes.get(request.request_id)
        if outcome and outcome.is_done and not is_stopped:
            request.status = RequestStatus.FINISHED_STOPPED
            is_stopped = True
        return token_ids, is_stopped

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        """Leave out outputs without results of running requests, except one that shows that there was a step."""
        self._outcomes = getattr(model_runner_output, KEY, {})
        groups: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        for group in groups.values():
            kept = []
            for output in group.outputs:
                outcome = self._outcomes.get(output.request_id)
                if outcome and outcome.results:
                    output.kv_transfer_params = {KEY: outcome.results}
                if outcome or output.finished:
                    kept.append(output)
                self._unsent.setdefault(output.request_id, []).extend(output.new_token_ids)
            group.outputs = kept or group.outputs[:1]
            for output in group.outputs:
                output.new_token_ids = self._unsent.pop(output.request_id)
        for known in (self._first_rows, self._unsent):
            for request_id in known.keys() - self.requests.keys():
                del known[request_id]
        return groups


class SemspecWorker(Worker):
    """Makes the model return all hidden states, and passes each forward pass to a `Recorder`."""

    _recorder: Recorder
    _projections: Projections
    _grammars: Grammars | None
    _chunks: Sequence[Chunk] = ()
    """Chunks of the pass whose tokens are not drawn yet, in the order of its rows."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Raises: RuntimeError when the architecture does not return its hidden states."""
        super().load_model(*args, **kwargs)
        model = self.model_runner.get_model()
        served = MODEL.validate_python(self.vllm_config.additional_config[KEY])
        if not hasattr(model, "set_aux_hidden_state_layers"):
            raise RuntimeError(f"{type(model).__name__} does not return its hidden states in vLLM")
        model.set_aux_hidden_state_layers(tuple(range(served.info.num_layers + 1)))
        self.model_runner.use_aux_hidden_state_outputs = True
        raw = load_tokenizer(served.folder)
        tokenizer = ModelTokenizer(
            raw, served.info, frozenset(served.eos_ids), served.num_embeddings
        )
        self._projections = Projections(
            served.info, str(self.device), Path(served.probes) if served.probes else None
        )
        self._grammars = Grammars.of(tokenizer)
        self._recorder = Recorder(
            tokenizer,
            served.writer,
            self.device,
            model.compute_logits,
            self._projections,
            self._grammars,
        )
        if self.use_v2_model_runner:
            self.model_runner.sampler.logits_processors.append(SeededSampling(self._draw))

    def is_compiled(self, grammar: str, num_bytes: int) -> bool:
        """See `Grammars.is_compiled`."""
        return self._grammars is not None and self._grammars.is_compiled(grammar, num_bytes)

    def projections(self) -> tuple[str, ...]:
        """Return the digests of the projections in this process."""
        return self._projections.digests

    @torch.inference_mode()
    def execute_model(self, scheduler_output: Any) -> Any:
        """Run the forward pass of a step, and record the rows that requests need."""
        for request_id in scheduler_output.finished_req_ids:
            self._recorder.drop(request_id)
        for new in scheduler_output.scheduled_new_reqs:
            if new.req_id in self._recorder.calls:  # V2 adds a request again after its pre-emption
                continue
            if (request := request_in(new.sampling_params)) is not None:
                self._recorder.start(new.req_id, new.prompt_token_ids, request)
        output = super().execute_model(scheduler_output)
        state = self.model_runner.execute_model_state
        if state is not None and state.aux_hidden_states is not None and self._recorder.calls:
            self._chunks = self._chunks_in(scheduler_output)
            self._recorder.record(self._chunks, state.aux_hidden_states, state.hidden_states)
            if not self.use_v2_model_runner and state.logits is not None:
                self._draw(state.logits)
        return output

    def _chunks_in(self, scheduler_output: Any) -> list[Chunk]:
        """Return the chunks of the pass, in the order of its rows."""
        runner, cached = self.model_runner, scheduler_output.scheduled_cached_reqs
        if self.use_v2_model_runner:
            batch = runner.execute_model_state.input_batch
            keys, starts = batch.req_ids, batch.query_start_loc_np
        else:
            keys, starts = runner.input_batch.req_ids, runner.query_start_loc.np
        first = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        first |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        num_tokens = scheduler_output.num_scheduled_tokens
        return [
            Chunk(key, int(starts[row]), first[key], num_tokens[key])
            for row, key in enumerate(keys)
        ]

    def _draw(self, logits: Tensor) -> None:
        """Draw the tokens of the pass. V1 computes `logits` in `execute_model`, V2 in `sample_tokens`."""
        self._recorder.draw(self._chunks, logits)
        self._chunks = ()

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample the tokens of a step, and add the results of requests to them.

        Raises: RuntimeError when vLLM did so without our draws.
        """
        output = super().sample_tokens(grammar_output)
        if self._chunks:
            raise RuntimeError("vLLM sampled tokens without calling for their draws")
        if isinstance(output, AsyncModelRunnerOutput):  # in V2: its tokens are still on the device
            output = output.get_output()
        tokens = getattr(output, "sampled_token_ids", None)
        if tokens and self._recorder.calls:
            sampled = {key: ids[-1] for key, ids in zip(output.req_ids, tokens, strict=True) if ids}
            setattr(output, KEY, self._recorder.take(sampled))
        return output


class SeededSampling(LogitsProcessor):
    """Calls `draw` with the logits of each step of Model Runner V2, `[num_requests, vocab_size]`."""

    def __init__(self, draw: Callable[[Tensor], None]) -> None:
        self._draw = draw

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Return True, so that vLLM calls `apply` for every request."""
        return True

    def apply(self, logits: Tensor, context: Any) -> Tensor:
        self._draw(logits)
        return logits


_patched = threading.Lock()


def keep_results() -> None:
    """Patch `RequestOutput.add` to keep results when vLLM merges two outputs for a slow reader.

    The original replaces `kv_transfer_params` by those of the later output.
    """
    with _patched:
        add = RequestOutput.add
        if getattr(add, KEY, False):
            return

        def add_with_results(self: Any, next_output: Any, aggregate: bool) -> None:
            results = [*(self.kv_transfer_params or {}).get(KEY, ())]
            add(self, next_output, aggregate)
            if results:
                results += (self.kv_transfer_params or {}).get(KEY, ())
                self.kv_transfer_params = (self.kv_transfer_params or {}) | {KEY: results}

        setattr(add_with_results, KEY, True)
        RequestOutput.add = add_with_results
