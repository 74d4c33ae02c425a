"""Tables of step times, and engines that keep them: the tokens are the same, the time is the table's."""

import json
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest

from semspec.engine.load import load_engine
from semspec.errors import InvalidRequest
from semspec.stack import StackConfig
from semspec.types import Context, GenerationParams, SamplingParams, Writer
from semspec_bench.gpu.shapes import PAPER
from semspec_bench.pace.counts import Counts, CountsFile, read_counts
from semspec_bench.pace.gpu import GpuFile
from semspec_bench.pace.paced import PacedStep, load_paced
from semspec_bench.pace.roofline import H100, step_ms
from semspec_bench.pace.table import FOLDER, PACES, load_pace, load_times
from semspec_bench.record import as_line
from semspec_bench.report.tables import main_table
from semspec_bench.runners.gateway import with_room
from semspec_bench.runners.paced import Pacing, config_of
from semspec_bench.summary import load_run
from semspec_target.settings import TargetSettings
from tests.bench.made_up import made_up_run

MEASUREMENTS = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu-h100" / "gpu.json"
HEAD = "# device: test GPU\n# num_gpus: 1\n# how: made up\nnum_sequences,num_tokens,step_ms\n"
ROWS = ["1,1,10", "1,513,30", "2,2,12", "2,514,32", "256,256,50", "256,768,70"]


def table(folder: Path, rows: list[str] | None = None, head: str = HEAD) -> Path:
    path = folder / "made-up.csv"
    path.write_text(head + "".join(f"{row}\n" for row in (ROWS if rows is None else rows)))
    return path


@pytest.mark.parametrize(
    ("row", "instead", "said"),
    [
        (0, "1,1,fast", "two whole numbers and a number"),
        (0, "2,2,10", "must be of 1 sequence"),
        (1, "1,513,nan", "finite number above 0"),
        (1, "1,1,10", "must ascend"),
        (2, "2,1,12", "at least num_sequences"),
        (2, "2,4,12", "must have 2 tokens"),
        (1, "1,100,30", "must reach 512 tokens"),
        (2, "0,2,12", "at least 1"),
    ],
)
def test_malformed_row_is_refused_with_its_line(
    tmp_path: Path, row: int, instead: str, said: str
) -> None:
    rows = [*ROWS[:row], instead, *ROWS[row + 1 :]]
    at = (
        row + 1 if said == "must reach 512 tokens" else row
    )  # found where the next number of sequences begins
    with pytest.raises(InvalidRequest, match=f"line {at + 5}, row.*{said}"):
        load_times(table(tmp_path, rows))


@pytest.mark.parametrize(
    ("rows", "head", "said"),
    [
        ([], HEAD, "no rows"),
        (ROWS[:4], HEAD, "rows of up to 256"),
        (ROWS[:5], HEAD, "must reach 512 tokens"),
        (ROWS, HEAD.replace("# how: made up\n", ""), "no line `# how"),
        (ROWS, HEAD.replace("gpus: 1", "gpus: none"), "num_gpus"),
        (ROWS, HEAD.replace(",step_ms", ""), "the first row must be"),
    ],
)
def test_incomplete_table_is_refused(tmp_path: Path, rows: list[str], head: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        load_times(table(tmp_path, rows, head))


def test_unknown_pace_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"h100-1\.5b-32b-colocated"):
        load_pace("h100")
    with pytest.raises(InvalidRequest, match=r"cannot read .*missing\.csv"):
        load_pace(f"{table(tmp_path)},{tmp_path}/missing.csv")
    assert load_pace(f"{table(tmp_path)},{table(tmp_path)}").num_gpus(with_draft=True) == 2


def test_times_between_rows_are_linear_and_constant_beyond(tmp_path: Path) -> None:
    times = load_times(table(tmp_path))
    assert times.step_ms(1, 1) == 10 and times.step_ms(256, 768) == 70
    assert times.step_ms(1, 257) == 20  # half of the rows' tokens beyond one a sequence
    assert times.step_ms(129, 129) == pytest.approx(12 + 38 / 2)
    assert times.step_ms(1, 9999) == 30


@pytest.mark.parametrize("name", PACES)
def test_shipped_times_never_fall_with_load(name: str) -> None:
    pace = load_pace(name)
    for times in (pace.draft, pace.target):
        for num_sequences in range(1, 257, 5):
            values = [
                times.step_ms(num_sequences, tokens) for tokens in range(num_sequences, 513, 7)
            ]
            assert values == sorted(values)
        by_sequences = [times.step_ms(number, number) for number in range(1, 257)]
        assert by_sequences == sorted(by_sequences)


def test_roofline_is_the_larger_of_reading_and_multiplying() -> None:
    rates, shape = (
        replace(H100, context_tokens=0, fixed_ms=0.5, chunk_ms=0.0, eager_ms=0.0),
        PAPER.target,
    )
    num_weights = shape.num_body_parameters + shape.num_head_parameters
    read_ms = 2e3 * num_weights / (H100.copy_bytes_per_s * H100.bandwidth_share)
    product_ms = 2e3 * num_weights / (H100.flops_per_s * H100.flops_share)
    assert step_ms(shape, rates, 1, 1, 1) == pytest.approx(read_ms + 0.5)
    assert step_ms(shape, rates, 1, 1, 512) == pytest.approx(512 * product_ms + 0.5)
    all_reduces_ms = step_ms(shape, rates, 2, 1, 1) - read_ms / 2 - 0.5
    assert all_reduces_ms == pytest.approx(2 * 64 * (0.01 + 2e3 * 5120 / 450e9))


@pytest.mark.parametrize(("role", "name"), [("target", "h100-32b"), ("draft", "h100-1.5b")])
def test_tables_have_the_measured_steps_of_single_sequences(role: str, name: str) -> None:
    times, stages = (
        load_times(FOLDER / f"{name}.csv"),
        json.loads(MEASUREMENTS.read_text())["stages"],
    )
    measured = {
        row["tokens"]: row["ms"]["median"]
        for row in stages[role]["facts"]["rows"]
        if (row["what"], row.get("streams"), row.get("context"), row.get("states", True))
        in {("decode", 1, 900, True), ("read", 1, 1024, True)}
    }
    assert {1, 20, 40, 128} <= measured.keys()
    for num_tokens, expected_ms in measured.items():
        assert times.step_ms(1, num_tokens) == pytest.approx(expected_ms, rel=0.07)


class Time:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def sleep(self, duration: float) -> None:
        assert duration > 0
        self.now += duration


def paced(folder: Path, dilation: float = 1.0) -> tuple[PacedStep, Time]:
    time = Time()
    step = PacedStep(load_times(table(folder)), dilation, clock=time.clock, sleep=time.sleep)
    step.resumed_at = lambda: 100.0
    return step, time


def make(step: PacedStep, time: Time, computed_s: float) -> None:
    start = time.now
    time.now += computed_s
    step.wait(start, 1, 1)


@pytest.mark.parametrize("dilation", [1.0, 4.0])
def test_steps_back_to_back_last_as_the_table_says(tmp_path: Path, dilation: float) -> None:
    step, time = paced(tmp_path, dilation)
    for _ in range(50):
        make(step, time, 0.007)
        time.now += 0.001  # between two steps, within the time of the second
    assert time.now - 100 - 0.001 == pytest.approx(50 * 0.010 * dilation)
    assert step.counts.num_steps == 50 and step.counts.num_late == 0
    assert step.counts.emulated_s == pytest.approx(0.5 * dilation)
    assert step.counts.computed_s == pytest.approx(0.35)


def test_late_steps_are_counted_and_not_made_up_for(tmp_path: Path) -> None:
    step, time = paced(tmp_path)
    for computed_s in (0.005, 0.016, 0.005, 0.0105):  # 5% over is no late step, and made up for
        make(step, time, computed_s)
    assert step.counts.num_late == 1
    assert step.counts.late_s == pytest.approx(0.006)
    make(step, time, 0.005)
    assert time.now - 100 == pytest.approx(5 * 0.010 + 0.006)


def test_step_after_a_pause_begins_with_the_work(tmp_path: Path) -> None:
    step, time = paced(tmp_path)
    make(step, time, 0.005)
    time.now += 1.0
    step.resumed_at = lambda: 101.01
    make(step, time, 0.005)
    assert time.now == pytest.approx(101.02)


def test_step_on_a_shared_gpu_takes_its_slices_in_turn_with_other_processes(tmp_path: Path) -> None:
    gpu, other = (GpuFile(tmp_path / "gpu", slice_s=0.004) for _ in range(2))
    time, others = Time(), [0.004, 0.005]

    def sleep(duration: float) -> None:
        if others:
            other.take(time.now, others.pop())
        time.sleep(duration)

    step = PacedStep(load_times(table(tmp_path)), 1.0, clock=time.clock, sleep=sleep, gpu=gpu)
    step.resumed_at = lambda: 100.0
    make(step, time, 0.0)
    assert time.now - 100 == pytest.approx(0.010 + 0.009)
    assert step.counts.emulated_s == pytest.approx(0.010) and step.counts.num_late == 0


async def test_paced_engine_writes_what_the_unpaced_one_writes(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    settings = TargetSettings(model=str(checkpoints["qwen2"]), device="cpu")
    params = GenerationParams(
        SamplingParams(seed=3), max_segments=0, max_tokens=30, want_states=True
    )
    time, reported = Time(), list[Counts]()
    step = PacedStep(load_times(table(tmp_path)), 1.0, reported.append, time.clock, time.sleep)
    step.resumed_at = time.clock
    texts = []
    load = partial(load_engine, settings, Writer.TARGET)
    for engine in (load(), load_paced(load, step)):
        step.resumed_at = lambda: 0.0  # the test's clock, not the worker's
        context = Context((await engine.encode("Tom has pens."),))
        texts.append([(one.segment, one.states) async for one in engine.generate(context, params)])
        await engine.aclose()
    assert texts[0] == texts[1]
    num_tokens = sum(len(segment.token_ids) for segment, _ in texts[1])
    assert reported[-1].num_steps == 1 + num_tokens  # the prompt, then each token
    expected = step_s(len(context.pieces[0].token_ids)) + num_tokens * step_s(1)
    assert reported[-1].emulated_s == pytest.approx(expected)


def step_s(num_tokens: int) -> float:
    return (10 + 20 * (num_tokens - 1) / 512) / 1e3


def test_counts_of_all_processes_are_added(tmp_path: Path) -> None:
    for name, num_late in (("target-1", 2.0), ("target-2", 1.0), ("draft-3", 0.0)):
        with closing(CountsFile(tmp_path / f"{name}.counts")) as file:
            file.write(Counts(50, num_late, 1.0, 0.1, 0.5))
    counts = read_counts(tmp_path, (Writer.DRAFT, Writer.TARGET))
    assert counts[Writer.TARGET] == Counts(100, 3, 2.0, 0.2, 1.0)
    assert counts[Writer.TARGET].late_share == 0.03
    assert counts[Writer.DRAFT].late_share == 0


def pacing(**changes: object) -> Pacing:
    return replace(Pacing(load_pace("h100-plain-2-targets"), dilation=4.0), **changes)  # type: ignore[arg-type]


def test_configuration_that_could_not_keep_the_pace_has_no_result(tmp_path: Path) -> None:
    folder = paced_run(tmp_path / "run", {"semantic": 6, "draft": 5})
    run = load_run(folder)
    assert [row.label for row in run.rows] == ["target", "draft"]
    [*_, last] = main_table(run).rows
    assert last[:2] == (
        "semantic",
        "no result, the host was too slow: 6.0% of the draft's 100 steps were late",
    )


@pytest.mark.parametrize("num_late", [{"target": 6}, {"semantic": 6, "draft": 6}])
def test_run_without_its_baseline_or_all_others_has_no_result(
    tmp_path: Path, num_late: dict[str, int]
) -> None:
    with pytest.raises(
        InvalidRequest, match=r"6.0% of the draft's 100 steps were late.*--dilate above 4"
    ):
        load_run(paced_run(tmp_path / "run", num_late))


def paced_run(folder: Path, num_late: dict[str, int]) -> Path:
    """A made-up run of 100 steps of the draft in each configuration, some of them late."""
    made = made_up_run(
        labels=("target", "semantic", "draft"), num_questions=5, paced=pacing().settings
    )
    steps = {
        row.label: {"draft": asdict(Counts(100, num_late.get(row.label, 0)))} for row in made.rows
    }
    folder.mkdir()
    facts = {"settings": made.settings, "environment": {}, "not_applicable": {}, "steps": steps}
    (folder / "run.json").write_text(json.dumps(facts | {"labels": list(steps)}))
    (folder / "records.jsonl").write_text("".join(map(as_line, made.records)))
    return folder


def test_stack_of_a_paced_run_says_so_and_has_the_replicas(tmp_path: Path) -> None:
    config = config_of(with_room(StackConfig(), 64), pacing(), tmp_path)
    assert config.environment["SEMSPEC_GATEWAY_MODEL_NAME"] == "paced/h100-plain-2-targets"
    assert config.environment["SEMSPEC_GATEWAY_MAX_CONCURRENT"] == "64"
    assert list(config.services) == ["draft", "target", "verifier", "target-2"]
    assert config.commands["target"][2:5] == (
        "semspec_bench.pace.service",
        "target",
        str((FOLDER / "h100-32b-plain.csv").resolve()),
    )
    assert config.commands["verifier"] == StackConfig().commands["verifier"]


def test_draft_and_target_of_a_colocated_pace_share_a_gpu(tmp_path: Path) -> None:
    pace = load_pace("h100-1.5b-32b-colocated")
    commands = config_of(StackConfig(), pacing(pace=pace), tmp_path).commands
    assert (
        commands["draft"][-2:] == commands["target"][-2:] == (str(tmp_path), "gpu")
        and pace.num_gpus(True) == 2
    )
