"""The same tests under Model Runner V2, which vLLM chooses on GPUs.

It needs Triton. Here Triton's interpreter runs the kernels, in processes whose `PYTHONPATH` has `interpreter`.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
TESTS = (
    "live_parity.py::test_streams_that_share_steps_write_what_ours_writes[0.0-sentence]",
    "live_parity.py::test_streams_that_share_steps_write_what_ours_writes[0.6-sentence]",
    "live_parity.py::test_cached_scores",
    "live_parity.py::test_logprobs_are_ours",
    "live_parity.py::test_penalties_and_grammars_equal_ours",
    "live_parity.py::test_proposals_equal",
    "live_parity.py::test_verification_returns_the_state_that_ours_returns",
    "live_parity.py::test_sentence_of_another_writer_goes_on_as_ours",
    "live_steps.py::test_pre_empted_requests_equal_ours",
    "live_steps.py::test_long_segments_are_scored_as_ours",
    "live_steps.py::test_proposals_after_prompt_in_chunks_equal_ours",
    "live_steps.py::test_cancelled_requests_leave_others_alone",
)


def test_engine_gives_the_same_results_under_model_runner_v2() -> None:
    paths = [str(FOLDER / "interpreter"), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", *(str(FOLDER / name) for name in TESTS)]
    ended = subprocess.run(
        [*command, "-W", "default", "-o", "python_files=live_*.py"],
        cwd=FOLDER.parents[1],
        # Without `interpreter`, the fixtures would miss V2, because of TRITON_INTERPRET.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-8000:]
