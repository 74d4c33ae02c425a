"""What no line of ours may do, beside what ruff's rules forbid: go round a check, or run the code of a checkpoint."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("semspec", "services", "gateway", "benchmarks", "examples")
FORBIDDEN_CALLS = frozenset(
    "compile __import__ os.popen torch.load torch.save torch.jit.load numpy.load np.load numpy.save np.save "
    "joblib.load shelve.open yaml.full_load ssl._create_unverified_context shutil.unpack_archive".split()
)
FORBIDDEN = {
    ("allow_pickle", "True"),
    ("trust_remote_code", "True"),
    ("weights_only", "False"),
    ("check_hostname", "False"),
}
"""Arguments with these values."""


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call, with its place."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path}:{node.lineno}", node


def arguments(call: ast.Call) -> dict[str, str]:
    return {word.arg or "": ast.unparse(word.value) for word in call.keywords}


def chooses_a_class(call: ast.Call) -> bool:
    """Whether it is `Auto....from_pretrained(...)`, or that of a class in a variable: the checkpoint may name code."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "from_pretrained"):
        return False
    return isinstance(function.value, ast.Name) and (
        function.value.id.startswith("Auto") or function.value.id.islower()
    )


def test_nothing_goes_round_a_check() -> None:
    assert [place for place, call in calls() if arguments(call).items() & FORBIDDEN] == []
    assert [place for place, call in calls() if ast.unparse(call.func) in FORBIDDEN_CALLS] == []


def test_every_loader_refuses_code_of_checkpoints() -> None:
    loaders = {place: arguments(call) for place, call in calls() if chooses_a_class(call)}
    assert len(loaders) >= 4
    assert [
        place for place, given in loaders.items() if given.get("trust_remote_code") != "False"
    ] == []
