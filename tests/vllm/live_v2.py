"""The same tests under Model Runner V2, which vLLM chooses on GPUs.

It needs Triton. Here Triton's interpreter runs the kernels, in processes whose `PYTHONPATH` has `interpreter`.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = (
    "(streams_that_share and sentence) or cached_scores or penalties_and_grammars or proposals or verification"
    " or pre_empted or long_segments or cancelled_requests"
)


def test_engine_gives_the_same_results_under_model_runner_v2() -> None:
    paths = [str(FOLDER / "interpreter"), *filter(None, [os.environ.get("PYTHONPATH")])]
    files = [str(FOLDER / f"live_{name}.py") for name in ("parity", "steps")]
    command = [sys.executable, "-m", "pytest", *files, "-k", TESTS, "-W", "default"]
    ended = subprocess.run(
        [*command, "-o", "python_files=live_*.py"],
        cwd=FOLDER.parents[1],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
