"""From questions to labels, on models with learned or random weights and data small enough to check by hand."""

import multiprocessing
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semspec.errors import InvalidRequest, Mismatch, Unavailable
from semspec.reporting.files import Row
from semspec.training.config import ContextsConfig, PipelineConfig, load_config
from semspec.training.data.contexts import choose_depths
from semspec.training.data.labels import Labels, gather_labels, label
from semspec.training.data.questions import Question
from semspec.training.files import read_rows
from semspec.training.pipeline import SHARDED, Pipeline
from semspec.training.trainer.probes import with_own
from semspec.types import Segment, SegmentEnd, Writer
from tests.engine.support import assert_same, tensor
from tests.helpers.checkpoints import loaded
from tests.training import support

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(run: Path) -> Pipeline:
    """A pipeline whose shards are all there."""
    return Pipeline(load_config(run / "pair.yaml"), run / "work")


def digests(pipeline: Pipeline) -> dict[str, str]:
    stages = (pipeline.contexts, pipeline.samples, pipeline.clusters)
    return {stage.folder.path.name: stage.folder.digest for stage in stages}


def test_shards_of_two_workers_equal_those_of_one(made: Pipeline, tmp_path: Path) -> None:
    first, second = (Pipeline(made.config, tmp_path, (number, 2)) for number in range(2))
    first.run()
    with pytest.raises(InvalidRequest, match="2 of 5 shards of clusters are missing"):
        _ = first.labels
    assert first.status() == [f"{name:<9} 3 of 5 shards" for name in SHARDED]
    second.run()
    assert digests(second) == digests(made)
    assert second.damaged() == []


def make_all(config: PipelineConfig, work: Path, shard: tuple[int, int]) -> None:
    torch.set_num_threads(1)
    pipeline = Pipeline(config, work, shard)
    for name in SHARDED:
        pipeline.make(name)


def test_killed_anywhere_it_ends_with_the_same_files(made: Pipeline, tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["semspec.training.pipeline"])
    rng, num_killed = random.Random(1), 0
    while True:
        before = num_files(tmp_path)
        worker = processes.Process(target=make_all, args=(made.config, tmp_path, (0, 1)))
        worker.start()
        files_more = rng.randrange(1, 5) if num_killed < 8 else 10**6
        while worker.is_alive() and num_files(tmp_path) < before + files_more:
            time.sleep(0.001)
        worker.kill()  # SIGKILL
        worker.join()
        if worker.exitcode != -signal.SIGKILL:
            break
        num_killed += 1
    assert worker.exitcode == 0 and num_killed >= 5
    assert digests(Pipeline(made.config, tmp_path)) == digests(made)


def num_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


async def test_states_on_disk_equal_served(made: Pipeline, models: tuple[Path, Path]) -> None:
    contexts = {context.id: context for context in made.contexts.contexts(1)}
    rows = read_rows(made.samples.folder.file(1, ".parquet"))
    tensors = load_file(made.samples.folder.file(1, ".safetensors"))
    drafted = [row for row in rows if row["writer"] == "draft"]
    assert len(drafted) == len(tensors["draft_states"])
    assert len(rows) == len(tensors["target_states"])
    async with loaded(*models) as (draft, target):
        tokenizers = {
            "draft": draft.tokenizer.info.tokenizer,
            "target": target.tokenizer.info.tokenizer,
        }
        for index in range(0, len(rows), 3):
            segment = segment_of(rows[index], tokenizers)
            [reading] = await target.score(contexts[rows[index]["context"]].context, [segment])
            assert_same(
                tensors["target_states"][index].float(), tensor(reading.states), 1e-3
            )  # float16 on disk
            assert reading.surprisal == pytest.approx(
                tensors["surprisal"][index].tolist(), rel=1e-3, abs=1e-3
            )
            assert reading.num_tokens == rows[index]["num_tokens"]
        for index in range(0, len(drafted), 3):
            segment = segment_of(drafted[index], tokenizers)
            [reading] = await draft.score(
                contexts[drafted[index]["context"]].read_by(Writer.DRAFT), [segment]
            )
            assert_same(tensors["draft_states"][index].float(), tensor(reading.states), 1e-3)


def segment_of(row: Row, tokenizers: dict[str, str]) -> Segment:
    written = row["text"], tuple(row["token_ids"]), tokenizers[row["writer"]]
    return Segment(*written, Writer(row["writer"]), SegmentEnd(row["end"]))


def test_given_traces_are_read_as_they_stand(models: tuple[Path, Path], tmp_path: Path) -> None:
    lines = [
        f'{{"question": "How many {n}?", "cot": "One {n}.\\n\\nTwo.\\n\\nThree.\\n\\nFour."}}\n'
        for n in range(40)
    ]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    source = {"file": str(tmp_path / "data.jsonl"), "trace": "cot"}
    config = support.config(
        *models, tmp_path, questions=[source], contexts={"traces": "data", "per_question": 2}
    )
    pipeline = Pipeline(config, tmp_path / "work")
    pipeline.make("contexts")
    contexts = [
        context
        for number in range(len(pipeline.questions))
        for context in pipeline.contexts.contexts(number)
    ]
    assert len(contexts) == 80 and {context.depth for context in contexts} == {0, 1, 2, 3}
    for context in contexts:
        assert context.question.trace and context.question.trace.startswith(context.reasoning)


def test_depths_are_stratified() -> None:
    config = ContextsConfig(per_question=4)
    for seed in range(50):
        depths = choose_depths(19, config, str(seed))
        assert [depth // 5 for depth in depths] == [0, 1, 2, 3]
    assert choose_depths(2, config, "0") == [0, 1, 2]
    assert {choose_depths(19, config, str(seed))[0] for seed in range(200)} == set(range(5))


def rows(target: str, draft: str) -> list[Row]:
    written = [("target", text) for text in target.split()] + [
        ("draft", text) for text in draft.split()
    ]
    return [
        {"context": "q/0", "depth": 0, "writer": w, "text": t, "num_tokens": len(t)}
        for w, t in written
    ]


def labelled(
    data: list[Row], clusters: Sequence[int | None], valid: Sequence[bool | None] = ()
) -> Labels:
    pairs = zip_longest(clusters, valid)
    found = [{"cluster": cluster, "valid": is_valid} for cluster, is_valid in pairs]
    return gather_labels([label(data, found, 7, {"q": 0})], [Question("q", "text", "all", "train")])


def test_labels_are_shares_of_each_models_other_samples() -> None:
    data = rows("a1 a2 a3 b1", "a4 c1 c2 ?")
    valid = [{"a": True, "?": None}.get(row["text"][0], False) for row in data]
    labels = labelled(data, [ord(row["text"][0]) for row in data], valid)
    np.testing.assert_allclose(labels.target_probability, [2 / 3, 2 / 3, 2 / 3, 0, 0.75, 0, 0, 0])
    np.testing.assert_allclose(labels.draft_probability, [0.25, 0.25, 0.25, 0, 0, 1 / 3, 1 / 3, 0])
    np.testing.assert_allclose(with_own(labels.target_probability[:4], 4), [0.75, 0.75, 0.75, 0.25])
    assert labels.by_draft.tolist() == [False] * 4 + [True] * 4
    assert labels.singletons == 3 / 8
    assert labels.valid[:4].tolist() == [1, 1, 1, 0] and np.isnan(labels.valid[7])
    assert labels.row.tolist() == list(range(8)) and labels.draft_row.tolist() == [-1] * 4 + [
        0,
        1,
        2,
        3,
    ]
    assert set(labels.shard.tolist()) == {7} and set(labels.split.tolist()) == {"train"}


def test_segment_of_unknown_meaning_has_no_label_but_counts_as_a_sample() -> None:
    labels = labelled(rows("a ? a b", "? a"), [0, None, 0, 1, None, 0])
    np.testing.assert_allclose(labels.target_probability, [1 / 3, 1 / 3, 0, 0.5])
    np.testing.assert_allclose(labels.draft_probability, [0.5, 0.5, 0, 0])
    assert labels.row.tolist() == [0, 2, 3, 5] and labels.draft_row.tolist() == [-1, -1, -1, 1]


def test_context_with_no_known_meaning_of_the_target_is_left_out() -> None:
    one, other = rows("? ?", "a b"), [row | {"context": "q/1"} for row in rows("a b", "a ?")]
    labels = labelled(one + other, [None, None, 0, 1, 0, 1, 0, None])
    assert labels.row.tolist() == [4, 5, 6] and labels.draft_row.tolist() == [-1, -1, 2]
    with pytest.raises(InvalidRequest, match="no context has a sample"):
        labelled(one, [None, None, 0, 1])


def test_cut_segments_and_ends_of_turn_reach_the_clusters(made: Pipeline) -> None:
    ends, num_mixed, num_labelled = Counter[str](), 0, 0
    for number in made.samples.folder.numbers():
        samples, clusters = (
            read_rows(stage.folder.file(number, ".parquet"))
            for stage in (made.samples, made.clusters)
        )
        found = defaultdict[tuple[str, int], set[str]](set)
        for row, cluster in zip(samples, clusters, strict=True):
            assert (cluster["cluster"] is None) == (row["end"] == "length")
            ends[row["end"]] += 1
            found[row["context"], cluster["cluster"]].add(row["end"])
        num_mixed += sum(len(own) > 1 for own in found.values())
        whole = [row for row in samples if row["end"] != "length"]
        known = {row["context"] for row in whole if row["writer"] == "target"}
        num_labelled += sum(row["context"] in known for row in whole)
    assert num_mixed == 0 and ends.keys() == {"boundary", "eos", "length"}
    assert made.clusters.counted()["num_cut"] == ends["length"]
    assert len(made.labels) == num_labelled


def test_one_meaning_is_refused(models: tuple[Path, Path], made: Pipeline, tmp_path: Path) -> None:
    equivalence = {"kind": "python", "object": "tests.training.support:ByAlphabet"}
    pipeline = Pipeline(support.config(*models, tmp_path, equivalence=equivalence), made.work)
    with pytest.raises(Mismatch, match=r"clusters was made with other settings"):
        pipeline.make("clusters")
    with pytest.raises(InvalidRequest, match="fewer than two clusters"):
        labelled(rows("a a", "a a"), [0] * 4)


def test_small_disk(made: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Pipeline(made.config, tmp_path)
    worker.make("contexts")
    monkeypatch.setattr("semspec.training.pipeline.state_row_bytes", lambda *_: 10**15)
    with pytest.raises(Unavailable, match=r"the samples need .* GB .* make room"):
        worker.make("samples")
    assert worker.samples.folder.numbers() == []
