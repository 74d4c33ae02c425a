"""`semspec train datastore`: built from answers, resumed, refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from semspec.decoding.retrieval.datastore import Datastore
from semspec.decoding.retrieval.ngrams import DOCUMENT_END, as_text
from semspec.engine.causal_lm import CausalLM
from semspec.errors import InvalidRequest, Mismatch
from semspec.training.config import DatastoreConfig
from semspec.training.datastore import DatastoreBuild
from semspec.training.files import read_rows

QUESTIONS = {"python": "tests.training.support:solved", "id": "id", "limit": 12}
Configured = Callable[..., DatastoreConfig]
HELD_OUT = {
    "python": "semspec_demo.probe_data:questions",
    "arguments": {"split": "report"},
    "id": "id",
    "limit": 4,
}


@pytest.fixture
def configured(models: tuple[Path, Path], tmp_path: Path) -> Configured:
    def configure(**changes: Any) -> DatastoreConfig:
        whole = {
            "name": "tiny",
            "target": {"model": str(models[1]), "device": "cpu"},
            "questions": [QUESTIONS, HELD_OUT | {"role": "test"}],
            "answers": {"max_tokens": 12},
            "neighbours": False,
            "shard_questions": 5,
            "output": tmp_path / "out",
        }
        return DatastoreConfig.model_validate(whole | changes)

    return configure


def tokens_of(folder: Path) -> np.ndarray:
    [path] = folder.glob("tokens-*")
    tokens: np.ndarray = load_file(path)["tokens"]
    return tokens


def test_datastore_holds_answers_of_target(configured: Configured, tmp_path: Path) -> None:
    config = configured()
    DatastoreBuild(config, tmp_path / "work").run()
    datastore, tokens = Datastore.load(config.output), tokens_of(config.output)
    lm = CausalLM.load(config.target.model, None, "cpu", "auto")
    assert datastore.card.model == lm.info.fingerprint
    assert datastore.card.tokenizer == lm.info.tokenizer
    rows = read_rows(tmp_path / "work" / "questions" / "00000.parquet")
    text = as_text(tokens)
    for row in rows:
        is_held_out = row["split"] == "test"
        assert (as_text(lm.tokenizer.ids_of(row["text"])) in text) is not is_held_out
    assert sum(row["split"] == "test" for row in rows) == 4
    assert (tokens == DOCUMENT_END).sum() == 12


def test_given_answers_are_taken_from_the_data(configured: Configured, tmp_path: Path) -> None:
    config = configured(
        questions=[QUESTIONS | {"trace": "solution"}, HELD_OUT | {"role": "test"}],
        answers={"source": "data"},
    )
    DatastoreBuild(config, tmp_path / "work").run()
    lm = CausalLM.load(config.target.model, None, "cpu", "auto")
    [first, *_] = [
        row for row in read_rows(tmp_path / "work" / "questions" / "00000.parquet") if row["trace"]
    ]
    assert as_text(lm.tokenizer.ids_of(first["trace"])) in as_text(tokens_of(config.output))
    without = configured(answers={"source": "data"}, output=tmp_path / "other")
    with pytest.raises(InvalidRequest, match="has no answer"):
        DatastoreBuild(without, tmp_path / "work2").run()
    assert not (tmp_path / "other").exists()


def test_keys_are_the_states_before_the_tokens(configured: Configured, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    config = configured(neighbours=True, width=16, layer=1, fit_tokens=64)
    DatastoreBuild(config, tmp_path / "work").run()
    datastore, tokens = Datastore.load(config.output), tokens_of(config.output)
    assert datastore.neighbours is not None and datastore.card.layer == 1
    lm = CausalLM.load(config.target.model, None, "cpu", "auto")
    document = tokens[: int(np.flatnonzero(tokens == DOCUMENT_END)[0])].tolist()
    states = lm.forward(document, lm.new_kv(), want_states=True).states[1].float().numpy()
    for place in (len(document) - 1, len(document) - 4):
        near = datastore.neighbours.near(states[place - 1])
        assert place in near[:3] or datastore.static.following(near[0], 1) == chr(tokens[place])


def test_other_settings_are_refused(configured: Configured, tmp_path: Path) -> None:
    DatastoreBuild(configured(), tmp_path / "work").run()
    with pytest.raises(Mismatch, match="max_tokens"):
        DatastoreBuild(configured(answers={"max_tokens": 13}), tmp_path / "work").run()


@pytest.mark.slow
def test_shares_make_same_datastore(configured: Configured, tmp_path: Path) -> None:
    whole, parts = configured(), configured(output=tmp_path / "parts")
    DatastoreBuild(whole, tmp_path / "work").run()
    DatastoreBuild(parts, tmp_path / "shared", shard=(1, 2)).run()
    assert not parts.output.exists()
    finished = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "shared" / "answers").glob("0*.json")
    }
    DatastoreBuild(parts, tmp_path / "shared").run()
    assert finished and {path: path.stat().st_mtime_ns for path in finished} == finished, (
        "a finished shard is kept"
    )
    assert Datastore.load(whole.output).card.digest == Datastore.load(parts.output).card.digest
