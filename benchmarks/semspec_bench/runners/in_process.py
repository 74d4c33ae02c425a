"""Runner of the decoding loop in this process: the same engines and probes without gRPC and HTTP."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import perf_counter

from semspec.decoding import Backends, Generation, Options, Verifier, decode, render_prompts
from semspec.decoding.backends import WithoutProbes
from semspec.decoding.likelihood.calibration import CALIBRATION_FILE, load_calibration
from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.drafter import RetrievingDraft
from semspec.engine.torch_engine import KV_BYTES, TorchEngine
from semspec.errors import InvalidRequest, Mismatch
from semspec.probes.verifier import ProbeVerifier
from semspec.records import SegmentTrace
from semspec.stack import StackConfig
from semspec.types import Context, Finished, SamplingParams, Segmentation, SegmentRecord, Writer
from semspec_bench.configuration import Configuration
from semspec_bench.runners.protocol import Ask, NotApplicable, Outcome
from semspec_bench.strategies import STRATEGIES
from semspec_gateway.generation.support import answer_strategy
from semspec_gateway.options import Defaults, StrategyOptions
from semspec_gateway.served import Served


class InProcessRunner:
    """See `semspec_bench.runners.protocol.Runner`."""

    def __init__(self, backends: Backends, defaults: Defaults) -> None:
        self._backends, self._defaults = backends, defaults

    async def ask(self, ask: Ask) -> Outcome:
        try:
            return await self._ask(ask)
        except (Mismatch, InvalidRequest) as error:
            raise NotApplicable(str(error)) from error

    def processes(self) -> Mapping[str, int]:
        return {"in-process": os.getpid()}

    async def _ask(self, ask: Ask) -> Outcome:
        start = perf_counter()
        drafter, target = self._backends.drafter, self._backends.target
        infos = await drafter.info(), await target.info()
        served = Served(*infos, await self._backends.verifier.info(), self._backends, STRATEGIES)
        options, segmentation = read_options(self._defaults, ask.configuration)
        strategy = STRATEGIES[ask.configuration.method](options)
        if reason := served.unsupported_reason(strategy):
            raise reason
        is_exact = ask.configuration.options.get("exact_answer")
        prompts = await render_prompts(ask.messages, target.encode(ask.messages), drafter, *infos)
        generation = Generation(
            context=Context((prompts.target,)),
            strategy=strategy,
            answer_strategy=answer_strategy(strategy, served) if is_exact else None,
            segmentation=segmentation,
            accepts_repeats=ask.configuration.knobs.get("repeats") == "allowed",
            sampling=SamplingParams(ask.temperature, ask.top_p, 0, ask.seed),
            max_tokens=ask.max_tokens,
            session=f"bench-{ask.seed}-{ask.configuration.label}",
            draft_prompt=prompts.draft,
            fallback=prompts.fallback,
        )
        events = [event async for event in decode(generation, self._backends)]
        latency_s = perf_counter() - start
        records = [event for event in events if isinstance(event, SegmentRecord)]
        [finished] = [event for event in events if isinstance(event, Finished)]
        return Outcome(
            text="".join(record.segment.text for record in records),
            finish_reason=finished.reason.value,
            latency_s=latency_s,
            num_prompt_tokens=len(prompts.target.token_ids),
            num_tokens=sum(len(record.segment.token_ids) for record in records),
            trace=[SegmentTrace.of(record).model_dump(mode="json") for record in records],
        )


def read_options(defaults: Defaults, configuration: Configuration) -> tuple[Options, Segmentation]:
    """Return the options of the configuration's label, with `defaults` for those that it leaves unset."""
    options = StrategyOptions.model_validate(
        {
            name: value
            for name, value in configuration.options.items()
            if name not in ("strategy", "segmentation", "exact_answer")
        }
    )
    operators = Defaults.model_validate(defaults.model_dump() | configuration.operators)
    segmentation = Segmentation(configuration.options.get("segmentation", defaults.segmentation))
    return operators.options(configuration.method, options), segmentation


@asynccontextmanager
async def open_in_process(
    config: StackConfig, num_sessions: int = 1
) -> AsyncIterator[InProcessRunner]:
    """Run both engines in this process, with a thread each. With several sessions, their caches hold more prefixes.

    Raises: Mismatch.
    """
    verifier = _verifier(config)
    release = config.release
    likelihood = (
        load_calibration(release.folder / CALIBRATION_FILE)
        if release and release.likelihood
        else None
    )
    datastore = Datastore.load(config.datastore) if config.datastore else None
    cache_bytes = KV_BYTES * 3 // 4 if num_sessions > 1 else KV_BYTES // 4
    engine = _engine(config, Writer.DRAFT, str(config.draft_model), cache_bytes)
    draft = RetrievingDraft(engine, datastore) if datastore else engine
    target = _engine(config, Writer.TARGET, str(config.target_model), cache_bytes)
    try:
        infos = await draft.info(), await target.info(), await verifier.info()
        if release and (reason := release.mismatch_reason(*infos)):
            raise reason
        backends = Backends(draft, target, verifier, likelihood=likelihood)
        yield InProcessRunner(backends, Defaults().with_rule(release) if release else Defaults())
    finally:
        await draft.aclose()
        await target.aclose()


def _engine(config: StackConfig, writer: Writer, model: str, cache_bytes: int) -> TorchEngine:
    dtype = config.given(f"SEMSPEC_{writer.value.upper()}_DTYPE") or "auto"
    return TorchEngine.load(model, writer=writer, dtype=dtype, cache_bytes=cache_bytes)


def _verifier(config: StackConfig) -> Verifier:
    return ProbeVerifier.load(config.pair) if config.pair and config.has_probes else WithoutProbes()
