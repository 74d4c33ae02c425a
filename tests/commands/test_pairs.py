"""Named pairs: where their files are found, downloads checked by digest, and what is said without a network."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from semspec import pairs
from semspec.cli import main, parser
from semspec.commands.options import stack_config
from semspec.errors import InvalidRequest, Mismatch
from semspec.pairs import NamedPair, PairFile, find, locate
from semspec.release import Release, ReleasedModel
from semspec.stack import StackConfig
from tests.helpers.hub import serving, use

FILES = {"draft": b"the draft", "target": b"the target's weights"}


def file_of(role: str) -> PairFile:
    content = FILES[role]
    return PairFile(
        f"a/{role}-GGUF", f"{role}.gguf", hashlib.sha256(content).hexdigest(), len(content)
    )


PAIR = NamedPair(
    "small",
    "one drafts for another",
    "MIT",
    file_of("draft"),
    file_of("target"),
    {"dtype": "float32"},
    2 * 10**9,
    (),
)


@pytest.fixture(autouse=True)
def manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of manifests with `PAIR` alone, an empty cache of the hub, and no network."""
    monkeypatch.setattr(pairs, "FOLDER", tmp_path / "pairs")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    use("http://127.0.0.1:1", monkeypatch)
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "small.json").write_bytes(pairs._PAIR.dump_json(PAIR))
    return tmp_path / "pairs"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A hub with both repositories; the folder that has theirs."""
    for role, content in FILES.items():
        (tmp_path / "hub" / role).mkdir(parents=True)
        (tmp_path / "hub" / role / f"{role}.gguf").write_bytes(content)
    with serving({f"a/{role}-GGUF": tmp_path / "hub" / role for role in FILES}) as endpoint:
        use(endpoint, monkeypatch)
        yield tmp_path / "hub"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with the draft under its own name and the target under another."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "draft.gguf").write_bytes(FILES["draft"])
    (folder / "another.gguf").write_bytes(FILES["target"])
    (folder / "different.gguf").write_bytes(FILES["target"][::-1])
    return folder


def test_files_are_found_by_name_and_by_digest(models: Path) -> None:
    found = locate(PAIR, models, tell=pytest.fail)
    assert found == {"draft": str(models / "draft.gguf"), "target": str(models / "another.gguf")}
    assert find(PAIR.draft, None) is None


def test_missing_files_are_downloaded_once(hub: Path, models: Path, tmp_path: Path) -> None:
    told: list[str] = []
    (models / "another.gguf").unlink()
    found = locate(PAIR, models, told.append)
    assert found["draft"] == str(models / "draft.gguf")
    assert Path(found["target"]).read_bytes() == FILES["target"]
    assert tmp_path / "cache" in Path(found["target"]).parents
    assert told == ["downloading a/target-GGUF:target.gguf: 0.0 MB"]
    assert locate(PAIR, models, pytest.fail) == found


def test_wrong_digest_is_refused_wherever_the_file_is(hub: Path, models: Path) -> None:
    wrong = hashlib.sha256(b"other").hexdigest()
    (models / "draft.gguf").write_bytes(b"other")
    words = f"draft.gguf has the SHA-256 {wrong}, but draft.gguf has {PAIR.draft.sha256}; "
    with pytest.raises(Mismatch, match=f"^{models}/{words}give --models a folder without it"):
        locate(PAIR, models, print)
    (hub / "draft" / "draft.gguf").write_bytes(b"other")
    with pytest.raises(Mismatch, match=f"{words}a/draft-GGUF has changed it"):
        locate(PAIR, None, print)
    with pytest.raises(Mismatch, match=f"{words}remove /.*, and start again to fetch it"):
        find(PAIR.draft, None)


def test_files_named_without_network(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--pair", "small", "--models", str(models.parent)])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.startswith(
        "semspec serve: the pair small cannot be fetched: a/draft-GGUF:draft.gguf is neither a file"
    )
    assert (
        "put into a folder what is missing, and give it with --models FOLDER: draft.gguf (0.0 MB, SHA-256 "
        in line
    )
    assert all(file.sha256 in line for file in PAIR.files.values())


def test_next_start_goes_on(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        use("http://127.0.0.1:1", patched)
        with pytest.raises(Mismatch, match=r"^the pair small cannot be fetched"):
            locate(PAIR, None, print)
    assert [Path(place).read_bytes() for place in locate(PAIR, None, print).values()] == [
        *FILES.values()
    ]


def configuration(*words: str) -> StackConfig:
    return stack_config(parser([]).parse_args(["serve", *words]))


def test_release_takes_files_from_folder(models: Path, tmp_path: Path) -> None:
    draft, target = (
        ReleasedModel(PAIR.files[role].model, "sha256-full:1", "a.b", dtype="packed")
        for role in ("draft", "target")
    )
    (tmp_path / "out").mkdir()
    Release("small", "1", draft, target, rule={}).save(tmp_path / "out")
    config = configuration("--pair", str(tmp_path / "out"), "--models", str(models))
    assert config.draft_model == str(models / "draft.gguf")
    assert config.target_model == str(models / "another.gguf")
    assert config.environment["SEMSPEC_TARGET_DTYPE"] == "packed"
    assert configuration("--pair", str(tmp_path / "out")).draft_model == PAIR.draft.model


def test_settings_of_pair(models: Path, manifests: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMSPEC_TARGET_DTYPE", "bfloat16")
    config = configuration("--pair", "small", "--models", str(models))
    assert config.draft_model == str(models / "draft.gguf")
    assert config.target_model == str(models / "another.gguf")
    assert config.environment == {
        "SEMSPEC_GATEWAY_MODEL_NAME": "small",
        "SEMSPEC_DRAFT_DTYPE": "float32",
    }
    assert config.pair is None
    (manifests / "small").mkdir()
    (manifests / "small" / "pair.json").write_text("{}")
    assert configuration("--pair", "small", "--models", str(models)).pair == manifests / "small"


def test_file_that_is_not_here_is_named_by_its_repository_and_revision(manifests: Path) -> None:
    pinned = replace(PAIR, draft=replace(PAIR.draft, revision="0123456"))
    (manifests / "small.json").write_bytes(pairs._PAIR.dump_json(pinned))
    config = configuration("--pair", "small")
    assert config.draft_model == "a/draft-GGUF:draft.gguf"
    assert config.environment["SEMSPEC_DRAFT_REVISION"] == "0123456"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pair", "large"), "--pair: there is no pair 'large' and no such path"),
        (("--models", "/tmp"), "--models requires --pair NAME"),
    ],
)
def test_option_that_names_nothing_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^{said}"):
        configuration(*words)
