"""Mathematics with verifiable answers: MATH-500, AIME 2024, AMC 2023.

A separate process compares answers, because a model's answer may ask for a number of ten billion digits. math-verify
limits its time by a signal, which works in a main thread only and does not interrupt a long multiplication. A process
can be killed from any thread."""

import json
import logging
import select
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from weakref import finalize

from semspec.errors import InternalError, InvalidRequest
from semspec.installation import install_command
from semspec.types import Message
from semspec_bench.tasks.answers import boxed_answers, conclusion
from semspec_bench.tasks.protocol import Task
from semspec_bench.tasks.source import HubDataset, Row, make_questions, read_rows

START_LIMIT_S = 120.0
LIMIT_S = 45.0
"""Longer than math-verify's own limits: two parses and four comparisons of 5 s each."""

WORKER = Path(__file__).with_name("equivalence_worker.py")
_log = logging.getLogger(__name__)
MATH_500 = HubDataset("HuggingFaceH4/MATH-500", "test")
AIME_2024 = HubDataset("HuggingFaceH4/aime_2024", "train")
AMC_2023 = HubDataset("math-ai/amc23", "test")
INSTRUCTION = "Please reason step by step, and put your final answer within \\boxed{}."
"""Part of the user's turn, without a system prompt: DeepSeek-R1's model card, "Usage Recommendations"."""


class Judge:
    """Grades with one worker process, started on first use and restarted after a crash or timeout. Thread-safe."""

    def __init__(self, limit_s: float = LIMIT_S, script: Path = WORKER) -> None:
        self._limit_s = limit_s
        self._script = script
        self._lock = Lock()
        self._worker: _Worker | None = None

    def is_equivalent(self, reference: str, text: str) -> bool:
        """Return whether the answer in `text` equals `reference` (LaTeX); false without an answer or after the timeout.

        Raises: InternalError when no worker can be started.
        """
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(self._script)
            answer = self._worker.ask(json.dumps([reference, text]), self._limit_s)
            if answer is None:
                _log.warning(
                    "no verdict within %g s, graded as wrong; reference: %s",
                    self._limit_s,
                    reference,
                )
                self._worker.stop()
                self._worker = None
            return answer == "true"


class _Worker:
    """A process that answers each line with a line; it ends with this object or when its stdin closes."""

    def __init__(self, script: Path) -> None:
        # -P keeps the script's folder, whose modules it must not import, off the path.
        # A separate session, so that Ctrl-C reaches only the parent.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.stop = finalize(self, _stop, self._process)
        if self._read_line(START_LIMIT_S) != "ready":
            self.stop()
            raise InternalError(
                "the grader does not start", remedy=f"try `{sys.executable} -P {script}`"
            )

    def ask(self, line: str, limit_s: float) -> str | None:
        """The reply, or None after a timeout."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(line.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            return None
        return self._read_line(limit_s)

    def _read_line(self, limit_s: float) -> str | None:
        """A reply is one short line, so it arrives in one piece."""
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], limit_s)
        return stdout.readline().decode().strip() or None if readable else None


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(BrokenPipeError), process:  # closes the pipes and waits
        pass


def load_mathematics(name: str, dataset: HubDataset, id_field: str, data: str | None) -> Task:
    """Load the task of a dataset with questions and answers. Raises: InvalidRequest, see `read_rows` and `Row.text`."""
    if find_spec("math_verify") is None:
        raise InvalidRequest(f"{name} is graded by math-verify: {install_command('bench')}")
    questions = make_questions(read_rows(dataset, data), id_field, _parts)
    judge = Judge()
    return Task(
        name, questions, lambda reference, text: judge.is_equivalent(reference, stated_answer(text))
    )


def _parts(row: Row) -> tuple[str, tuple[Message, ...], str]:
    question = row.text("problem", "question")
    return question, (Message("user", f"{question}\n{INSTRUCTION}"),), row.text("answer")


def stated_answer(text: str) -> str:
    """Return the conclusion's last boxed answer in its box, or the whole conclusion, for "the answer is 5"."""
    text = conclusion(text)
    boxes = boxed_answers(text)
    return f"\\boxed{{{boxes[-1].rstrip('.')}}}" if boxes else text
