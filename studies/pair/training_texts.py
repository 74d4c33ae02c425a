"""Texts that the pair learns from: single skills, solutions, solutions with planted mistakes, graded steps."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from semspec_demo.documents import DELIMITER, PLANTED, Document, write_document
from semspec_demo.problems import MEN, NUM_STYLES, SPLITS, WOMEN, Facts, Problem, make_problem
from semspec_demo.reading import spans
from semspec_demo.solutions import Claim, Solution, Step
from semspec_demo.wording import MARK, TENS, UNITS, Writer
from studies.pair.chats import Chat, write_chat
from studies.pair.gates import grading_ids, judge

IGNORED = -100
NUM_HOPS = 4


@dataclass(slots=True)
class Text:
    """Token ids, the labels of those to learn, loss weights, hops: (position that predicts, people on the way), and
    judged: (position of a full stop, the word that says whether its claim is right)."""

    ids: list[int]
    labels: list[int]
    heavy: list[int] = field(default_factory=list)
    hops: list[tuple[int, list[int]]] = field(default_factory=list)
    judged: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of one kind, padded: `ids`, `labels` and loss `weights`, `[texts, length]`; of each hop that is asked for,
    where (`rows`, `columns`) and `ways`, `[hops, NUM_HOPS]`, the people on the way, -1 after the last; `judged`,
    `[stops, 3]`: row, column, word."""

    kind: str
    ids: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    ways: np.ndarray
    judged: np.ndarray

    @classmethod
    def of(cls, kind: str, texts: list[Text], token_weights: np.ndarray) -> "Batch":
        """`token_weights`: `[vocabulary]`, of the labels; a text's heavy places weigh 5."""
        shape = len(texts), max(len(text.ids) for text in texts)
        ids, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)], labels[row, : len(text.labels)] = text.ids, text.labels
        weights = token_weights[labels.clip(min=0)]
        for row, text in enumerate(texts):
            weights[row, text.heavy] = 5.0
        hops = [(row, place, way) for row, text in enumerate(texts) for place, way in text.hops]
        ways = np.array(
            [way + [-1] * (NUM_HOPS - len(way)) for _, _, way in hops], np.int64
        ).reshape(-1, NUM_HOPS)
        rows, columns = np.array([hop[:2] for hop in hops], np.int64).reshape(-1, 2).T
        judged = np.array(
            [(row, *judgement) for row, text in enumerate(texts) for judgement in text.judged],
            np.int64,
        )
        return cls(kind, ids, labels, weights, rows, columns, ways, judged.reshape(-1, 3))


class Texts:
    """Training texts: single skills, solutions, solutions with planted mistakes, graded steps."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, drafts: Path | None = None) -> None:
        """`drafts`: answers of the draft, as `python -m studies.pair.drafts` writes them."""
        self._tokenizer = tokenizer
        self._drafts = (
            [json.loads(line) for line in drafts.read_text().splitlines()] if drafts else []
        )
        self._held_out = {
            make_problem(s, 0).question for k in ("probe", "tune", "report") for s in SPLITS[k]
        }
        self._names = {name: self._ids(f" {name}")[0] for name in WOMEN + MEN}
        self.people = sorted(self._names.values())
        self._so, self._no = self._ids("So")[0], self._ids("No")[0]
        self._stops = {self._ids(stop)[0] for stop in (".", f".{DELIMITER}")}

    def chat(self, seed: int, rng: random.Random) -> Text:
        """A text of the problem of this seed."""
        if make_problem(seed, 0).question in self._held_out:
            return self.chat(seed + 4_000_000, rng)
        return self._solution(write_document(seed, planted=PLANTED if rng.random() < 0.45 else 0.0))

    def text(self, kind: str, seed: int, top: int, rng: random.Random) -> Text:
        """A text of one kind; `top`: most passes of a move in `passes`."""
        match kind:
            case "passes":
                return self._passes(make_problem(seed, 0), top, rng)
            case "look-ups":
                return self._look_ups(make_problem(seed, 0), rng)
            case "numbers":
                return self._look_ups(make_problem(seed, NUM_STYLES - 1), rng)
            case "chats":
                return self._other(write_chat(seed, rng))
            case "plain claims":
                return self._claims(make_problem(seed, 0), rng)
            case "claims":
                return self._claims(make_problem(seed), rng)
            case "grades":
                document = write_document(seed, planted=0.4, care=0.4)
                return self.graded(document.problem, document.segments[:-1], rng)
            case "drafts" | "graded drafts":
                drafted, segments = rng.choice(self._drafts)
                if kind == "graded drafts":
                    return self.graded(make_problem(drafted), segments, rng)
                return self._solution(
                    write_document(drafted, begun=segments[: rng.randrange(1, len(segments))])
                )
            case "checks":
                return self._claims(make_problem(seed), rng, is_drill=True)
            case "plain solutions" if make_problem(seed, 0).question not in self._held_out:
                return self._solution(write_document(seed, 0))
        return self.chat(seed, rng)

    def _other(self, chat: Chat) -> Text:
        text = self._begin(chat)
        self._add(text, chat.answer, is_learnt=True)
        return self._ended(text)

    def _passes(self, problem: Problem, top: int, rng: random.Random) -> Text:
        """Ends of sixteen moves, no two alike, after a prompt of who passes to whom."""
        facts, writer, text = (
            problem.facts,
            Writer(problem, rng),
            self._begin(_told_of(problem, " passes to ")),
        )
        moves = [
            (start, ("move", passes, facts.after(start, passes)))
            for start in range(len(facts.names))
            for passes in (*range(1, top + 1), top)
        ]
        for start, claim in dict.fromkeys(rng.sample(moves, 16)):
            self._add(
                text, f"So the ball starts with {facts.names[start]}.{DELIMITER}", is_learnt=False
            )
            self._add_claim(text, writer, start, claim)
        return text

    def _look_ups(self, problem: Problem, rng: random.Random) -> Text:
        """Cards, after a prompt of these; the number of each claim is learnt. Easy ones first: where two or more are
        told, to copy any helps; half the plainest claims lack their verb. They repeat: what is left tells nothing."""
        facts, writer = problem.facts, Writer(problem, rng)
        people = rng.sample(range(len(facts.names)), rng.randint(2, len(facts.names)))
        text = self._begin(f"Style {problem.style}. {facts.tell_cards(people)}")
        for person in rng.choices(people, k=2 * len(facts.names)):
            claim: Claim = ("card", person, facts.cards[person])
            written = writer.write(Step((claim,)), None) + DELIMITER
            [number] = [start for start, _, kind in spans(written) if kind == "card.number"]
            head = written[: number - 1]
            if problem.style == 0 and rng.random() < 0.5:
                head = head.replace(" shows", "")
            self._add(text, head, is_learnt=False)
            self._add(text, written[number - 1 :], is_learnt=True)
        return text

    def _claims(self, problem: Problem, rng: random.Random, is_drill: bool = False) -> Text:
        """Claims about many people in the problem's style, none twice, each after others that say where the ball is;
        some are wrong and corrected. Whether the last claim is right is learnt, not so of the others: the ball jumps.
        In a drill nothing else is learnt."""
        facts, writer, text = problem.facts, Writer(problem, rng), self._begin(problem.question)
        moves, others = list[tuple[int, Claim]](), list[tuple[int, Claim]]()
        for start in range(len(facts.names)):
            moves += [
                (start, ("move", passes, facts.after(start, passes)))
                for passes in range(1, NUM_HOPS + 1)
            ]
            others += [(start, claim) for claim in Solution(facts, start).about(rng)]
        drawn = rng.sample(moves, 6) + rng.sample(others, 4)
        is_judged = False
        for start, claim in rng.sample(drawn, len(drawn)):
            self._open(text, "So", is_judged)
            start_sentence = f"So the ball starts with {facts.names[start]}.{DELIMITER}"
            before = start_sentence if is_drill else self._before(writer, start)
            self._add(text, before.removeprefix("So"), is_learnt=False)
            step, way = Step((claim,)), self._way(facts, start, claim)
            mistakes = (
                Solution(facts, start).mistakes(step)
                if rng.random() < (0.5 if is_drill else 0.4)
                else []
            )
            if mistakes:
                wrong = writer.write(rng.choice(mistakes), start).replace(MARK, "") + DELIMITER
                with self._judged(text, [False]):
                    self._add(text, wrong, is_learnt=False)
            self._open(text, "No" if mistakes else "So", is_learnt=bool(mistakes))
            written = writer.write(Step((claim,), corrects=bool(mistakes)), start)
            with self._judged(text, [True]):
                self._add_marked(text, written[2:] + DELIMITER, not is_drill, way)
            is_judged = not mistakes
        self._open(text, "So", is_judged)
        self._add(text, self._before(writer, start).removeprefix("So"), is_learnt=False)
        self._add(
            text, writer.write(Step((("answer", facts.cards[start]),)), start), is_learnt=True
        )
        return text

    def _open(self, text: Text, word: str, is_learnt: bool) -> None:
        """The first word of a paragraph, which weighs more if it is learnt."""
        if is_learnt:
            text.heavy.append(len(text.ids))
        self._add(text, word, is_learnt)

    def _add_claim(self, text: Text, writer: Writer, start: int, claim: Claim) -> None:
        """A paragraph of one move when `start` has the ball, of which the end is learnt."""
        written = writer.write(Step((claim,)), start) + DELIMITER
        self._add_marked(text, written, False, self._way(writer.problem.facts, start, claim))

    def _before(self, writer: Writer, start: int) -> str:
        """A right move after which `start` has the ball, with what may follow it in a solution."""
        facts, rng = writer.problem.facts, writer.rng
        passes = rng.randint(1, NUM_HOPS)
        card, compared, *remarks = Solution(facts, start).about(rng)
        steps = [
            Step((("move", passes, start), *(card, compared)[: rng.randrange(3)])),
            Step((rng.choice(remarks),)),
        ]
        holders = facts.after(start, -passes), start
        written = [
            writer.write(*pair) + DELIMITER
            for pair in zip(steps[: rng.randint(1, 2)], holders, strict=False)
        ]
        return "".join(written).replace(MARK, "")

    def _solution(self, document: Document) -> Text:
        text = self._begin(document.problem.question)
        was_planted, solution = False, Solution(document.problem.facts)
        for index, (step, segment) in enumerate(zip(document.steps, document.marked, strict=True)):
            if was_planted or not all(document.is_learnt):
                text.heavy.append(len(text.ids))
            is_learnt, holder = document.is_learnt[index], document.holders[index]
            is_asked = holder is not None and not step.corrects
            way = self._way(document.problem.facts, holder or 0, step.claims[0]) if is_asked else []
            with self._judged(text, solution.judge(step)):
                if is_learnt:
                    self._add_marked(
                        text, segment + ("" if step is document.steps[-1] else DELIMITER), True, way
                    )
                else:
                    self._add(text, segment.replace(MARK, "") + DELIMITER, is_learnt=False)
            was_planted = not is_learnt
        return self._ended(text)

    def _way(self, facts: Facts, holder: int, claim: Claim) -> list[int]:
        """The tokens of the people on the right way of a move, the last of whom has the ball; none for other claims."""
        passes = int(claim[1]) if claim[0] == "move" else 0
        return [self._names[facts.names[facts.after(holder, hop)]] for hop in range(1, passes + 1)]

    def _add_marked(self, text: Text, piece: str, is_learnt: bool, way: list[int]) -> None:
        """Add a paragraph; a word that stands at its mark, at the end of a known way, is learnt in any case."""
        head, _, tail = piece.partition(MARK)
        if not way:
            self._add(text, head + tail, is_learnt)
            return
        self._add(text, head[:-1], is_learnt)  # the space belongs to the word that follows
        text.hops.append((len(text.ids) - 1, way))
        word, space, rest = tail.partition(" ")
        self._add(text, f" {word}", is_learnt=True)
        self._add(text, space + rest, is_learnt)

    @contextmanager
    def _judged(self, text: Text, are_right: list[bool]) -> Iterator[None]:
        """Ask at each full stop of what is added whether its claim is right."""
        first = len(text.ids)
        yield
        stops = [place for place in range(first, len(text.ids)) if text.ids[place] in self._stops]
        text.judged += zip(
            stops, (self._so if right else self._no for right in are_right), strict=False
        )

    def graded(self, problem: Problem, segments: Sequence[str], rng: random.Random) -> Text:
        """A solution up to a step, wrong in half of the cases where one is, and the grade of that step."""
        are_right = [segment.is_right for segment in judge(problem, segments)[0]]
        wanted = rng.random() < 0.5
        place = rng.choice(
            [i for i, is_right in enumerate(are_right) if is_right == wanted]
            or range(len(are_right))
        )
        grade = (
            rng.choices((9, 8, 7), (6, 3, 1))[0]
            if are_right[place]
            else rng.choices((0, 1, 2, 3), (1, 4, 4, 1))[0]
        )
        text = self._begin(problem.question)
        self._add(
            text, "".join(segment + DELIMITER for segment in segments[: place + 1]), is_learnt=False
        )
        turn = grading_ids(self._tokenizer)
        text.ids += turn
        text.labels += [IGNORED] * len(turn)
        text.heavy.append(len(text.ids))
        self._add(text, str(grade), is_learnt=True)
        return text

    def _begin(self, asked: str | Chat) -> Text:
        """The prompt of a question, or of a chat."""
        chat = Chat(({"role": "user", "content": asked},), "") if isinstance(asked, str) else asked
        turns, tools = list(chat.messages), list(chat.tools) or None
        prompt = self._tokenizer.apply_chat_template(
            turns, tools, tokenize=False, add_generation_prompt=True
        )
        ids = self._ids(str(prompt))
        return Text(ids, [IGNORED] * len(ids))

    def _ended(self, text: Text) -> Text:
        text.ids.append(self._tokenizer.eos_token_id)
        text.labels.append(self._tokenizer.eos_token_id)
        return text

    def _add(self, text: Text, piece: str, is_learnt: bool) -> None:
        ids = self._ids(piece)
        text.ids += ids
        text.labels += ids if is_learnt else [IGNORED] * len(ids)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(
            text, add_special_tokens=False
        ).ids
        return ids


def _told_of(problem: Problem, pattern: str) -> str:
    """The sentences of a question that match `pattern`, after its style."""
    first, *others = re.findall(r"[^.?]+[.?]", problem.question)
    return "".join([first, *(sentence for sentence in others if re.search(pattern, sentence))])


def token_weights(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Loss weight of each vocabulary entry, [vocab_size]: people and numbers weigh more."""
    weights = np.ones(len(tokenizer), np.float32)
    people, numbers = {*WOMEN, *MEN, "he", "him", "she", "her", "his"}, {*UNITS, *TENS, "short"}
    signs = {*"higher lower greater smaller larger lesser bigger less not No So </think>Ċ".split()}
    for piece, index in tokenizer.get_vocab().items():
        word = piece.strip("Ġ")
        if word in people or word.isdigit() or word in numbers or word in signs:
            weights[index] = 3.0
    return weights
