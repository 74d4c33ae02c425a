"""What no line of ours may do: run what it reads, or go round a check."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("semspec", "services", "gateway", "training", "bench", "demo")
FORBIDDEN_CALLS = frozenset(
    (
        "eval exec compile __import__ os.system os.popen subprocess.getoutput subprocess.getstatusoutput "
        "torch.load torch.save torch.jit.load numpy.load np.load numpy.save np.save "
        "pickle.load pickle.loads marshal.load marshal.loads shelve.open joblib.load "
        "yaml.load yaml.unsafe_load yaml.full_load hashlib.md5 hashlib.sha1 tempfile.mktemp "
        "ssl._create_unverified_context tarfile.open.extractall shutil.unpack_archive"
    ).split()
)
FORBIDDEN_VALUES = {
    ("shell", "True"),
    ("verify", "False"),
    ("allow_pickle", "True"),
    ("trust_remote_code", "True"),
    ("weights_only", "False"),
    ("check_hostname", "False"),
}


def offences(source: str) -> Iterator[str]:
    """Every forbidden call in a program."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {(word.arg or "", ast.unparse(word.value)) for word in node.keywords}
            if name in FORBIDDEN_CALLS:
                yield f"line {node.lineno}: {name}"
            for argument, value in sorted(given & FORBIDDEN_VALUES):
                yield f"line {node.lineno}: {argument}={value}"


def test_nothing_runs_what_it_reads_or_goes_round_a_check() -> None:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 100
    found = {str(path.relative_to(ROOT)): list(offences(path.read_text())) for path in paths}
    assert not {path: lines for path, lines in found.items() if lines}


@pytest.mark.parametrize(
    "line",
    [
        "eval(text)",
        "subprocess.run(command, shell=True)",
        "numpy.load(path)",
        "yaml.load(text, Loader)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "httpx.get(url, verify=False)",
    ],
)
def test_offence_would_be_found(line: str) -> None:
    assert len(list(offences(line))) == 1


def test_model_in_evaluation_mode_is_no_offence() -> None:
    assert not list(offences("model.eval()\nre.compile(pattern)\nyaml.safe_load(text)\nhttpx.get(url, verify=True)"))
