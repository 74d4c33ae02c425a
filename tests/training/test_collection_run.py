"""From served answers to probes: two real models, a gateway over them, the collector and the pipeline."""

import asyncio
import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from semspec.client import Gateway as Client
from semspec.decoding import Backends
from semspec.decoding.protocols import WithoutProbes
from semspec.keys import entry, new_key
from semspec.probes.verifier import ProbeVerifier
from semspec.training.cli import main
from semspec.training.collect import fetch, num_answers
from semspec.training.config import PipelineConfig
from semspec.training.data.contexts import prompts
from semspec.training.data.pair import EngineWriter
from semspec.training.files import StageFolder, read_json, write_json
from semspec.training.pipeline import Pipeline
from semspec.types import Context, GenerationParams, SamplingParams, Segment, Writer, derive_seed
from tests.checkpoints import loaded
from tests.gateway.support import RedisServer, bearer, make_settings, redis_server, running_gateway
from tests.training import support

pytestmark = pytest.mark.slow
ALICE, COLLECTOR = new_key(), new_key()
NUM_ANSWERS = 24
SEED = 11
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def collection(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was collected of questions to the target and to the draft, each alone, in turn."""
    folder = tmp_path_factory.mktemp("collection")
    with redis_server(tmp_path_factory.mktemp("redis")) as redis:
        asyncio.run(serve_and_collect(models, redis, folder))
    return folder


async def serve_and_collect(models: tuple[Path, Path], redis: RedisServer, folder: Path) -> None:
    settings = make_settings(
        api_keys=f"{entry('alice', ALICE)}:consents {entry('ops', COLLECTOR)}:collector",
        collect={"share": 1.0},
        defaults={"strategy": "target"},
        redis_url=redis.url,
    )
    async with (
        loaded(*models) as pair,
        running_gateway(settings, Backends(*pair, WithoutProbes())) as gateway,
    ):
        for number, row in enumerate(islice(support.solved(), NUM_ANSWERS)):
            messages = [{"role": "user", "content": row["question"]}]
            sampling = {"seed": SEED, "temperature": 1.0, "top_p": 1.0, "max_tokens": 60}
            model = f"semspec-demo:{('target', 'draft')[number % 2]}"
            body = {"model": model, "messages": messages, **sampling}
            response = await gateway.http.post(
                "/v1/chat/completions", json=body, headers=bearer(ALICE)
            )
            assert response.status_code == 200, response.text
        client = Client.at(gateway.base_url, COLLECTOR)
        async with asyncio.timeout(PATIENCE_S):
            while num_answers(StageFolder(folder)) < NUM_ANSWERS:
                await fetch(client, StageFolder(folder), NUM_ANSWERS)
        await client.aclose()


def configured(
    collection: Path, models: tuple[Path, Path], output: Path, **changes: Any
) -> PipelineConfig:
    report = {"variants": False, "learning_curve": ()}
    questions = [{"collection": str(collection), "domain": "traffic"}]
    return support.config(*models, output, questions=questions, report=report, **changes)


def test_contexts_are_those_that_the_engines_write_offline(
    collection: Path, models: tuple[Path, Path], tmp_path: Path
) -> None:
    pipeline = Pipeline(
        configured(collection, models, tmp_path / "out", contexts={}), tmp_path / "work"
    )
    pipeline.make("contexts")
    pair, sampling = pipeline.pair, SamplingParams(1.0, 1.0, 0, SEED)
    recipe = GenerationParams(sampling)
    writers = {writer: EngineWriter(model, writer, recipe) for writer, model in pair.models.items()}
    num_written: Counter[Writer] = Counter()
    for number in pipeline.contexts.folder.numbers():
        for one in pipeline.contexts.contexts(number):
            start = prompts(
                one.question, pipeline.config.prompt, pair.target.tokenizer, pair.draft.tokenizer
            )
            assert one.context.pieces[0] == start.target and one.draft_prompt == start.draft
            if one.depth == 0:
                continue
            *before, last = one.context.pieces
            assert isinstance(last, Segment)
            own = replace(one, context=Context(tuple(before)))
            assert writers[last.writer].generate(
                own.read_by(last.writer), [derive_seed(SEED, last.writer.value, 0)]
            ) == [last]
            num_written[last.writer] += 1
    assert min(num_written[Writer.DRAFT], num_written[Writer.TARGET]) >= 5


def test_probes_are_trained_on_a_collection(
    collection: Path, models: tuple[Path, Path], tmp_path: Path
) -> None:
    config = configured(collection, models, tmp_path / "out")
    assert support.semspec_train("run", config, tmp_path) == 0
    verifier = ProbeVerifier.load(tmp_path / "out")
    recipe = read_json(collection / "recipe.json")
    info = asyncio.run(verifier.info())
    assert (info.draft_model, info.target_model) == (
        recipe["draft"]["fingerprint"],
        recipe["target"]["fingerprint"],
    )
    report = read_json(tmp_path / "work" / "report" / "report.json")
    assert all(count > 0 for count in report["counts"]["contexts"].values())
    assert not (tmp_path / "out" / "alternatives").exists(), "the report has no variants"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("target", "fingerprint"), "was collected from a target with the fingerprint another"),
        (("draft", "fingerprint"), "was collected from a draft with the fingerprint another"),
        (("segmentation",), "was collected with the segmentation another"),
        (("collection",), "is a collection of format another"),
    ],
)
def test_foreign_collection_is_refused_in_one_line_before_anything_is_made(
    collection: Path,
    models: tuple[Path, Path],
    tmp_path: Path,
    place: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(collection, foreign)
    recipe = read_json(foreign / "recipe.json")
    (recipe if len(place) == 1 else recipe[place[0]])[place[-1]] = "another"
    write_json(foreign / "recipe.json", recipe)
    code = support.semspec_train("run", configured(foreign, models, tmp_path / "out"), tmp_path)
    line = capsys.readouterr().err
    assert code == 2 and line.count("\n") == 1 and words in line and "Traceback" not in line
    assert not (tmp_path / "work").exists() and not (tmp_path / "out").exists()


def test_command_deletes_an_owners_answers(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(collection, folder)
    for arguments, code, words in (
        (
            ["--output", str(folder), "--forget", "alice"],
            0,
            f"{NUM_ANSWERS} answers of alice are deleted",
        ),
        (["--output", str(tmp_path / "no"), "--forget", "alice"], 2, "is no collection"),
        (["--output", str(folder), "--gateway", "http://127.0.0.1:1"], 1, "no gateway answers"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["collect", *arguments])
        line = capsys.readouterr().err
        assert end.value.code == code and line.count("\n") == 1 and words in line
    assert num_answers(StageFolder(folder)) == 0 and not (tmp_path / "no").exists()
