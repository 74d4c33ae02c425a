"""Builds a datastore for the strategy `retrieval` from a target's answers: `semspec train datastore`.

questions -> answers (shards) -> projection -> keys (shards) -> datastore. Every stage continues where it was stopped.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semspec.decoding.retrieval.datastore import (
    Projection,
    build_index,
    import_faiss,
    write_datastore,
)
from semspec.decoding.retrieval.ngrams import DOCUMENT_END, TokenArray, sorted_places
from semspec.engine.causal_lm import CausalLM
from semspec.engine.torch_engine import TorchEngine
from semspec.errors import InvalidRequest
from semspec.files import digest_of
from semspec.reporting.files import Row
from semspec.reporting.progress import Reporter
from semspec.training.config import DatastoreConfig
from semspec.training.data.contexts import prompts
from semspec.training.data.pair import info_json, load_model
from semspec.training.data.questions import Question, stored_questions
from semspec.training.data.stages import Questions
from semspec.training.files import StageFolder, check_format, write_tensors
from semspec.types import Context, GenerationParams, Piece, Writer, derive_seed

_CACHE_BYTES = 256 << 20


class DatastoreBuild:
    """Builds one datastore in one work folder, its answers on one worker's share of the shards."""

    def __init__(
        self,
        config: DatastoreConfig,
        work: Path,
        shard: tuple[int, int] = (0, 1),
        reporter: Reporter | None = None,
    ) -> None:
        """Raises: Mismatch when `work` has another format."""
        check_format(work)
        self.config, self._work, self._shard = config, work, shard
        self._reporter = reporter or Reporter(quiet=True)

    def run(self) -> None:
        """Run what is missing. Raises: InvalidRequest, Mismatch, Unavailable."""
        if self.config.neighbours:
            import_faiss()
        self._make(
            "answers",
            range(self._shard[0], len(self.questions), self._shard[1]),
            "",
            self._write_answers,
        )
        if self._shard[1] > 1:
            self._reporter.say(
                "this worker's answers are written; when all are, run the same command without --shard"
            )
            return
        if missing := [
            number for number in self._numbers if not self._folder("answers").is_done(number)
        ]:
            raise InvalidRequest(
                f"answers of shard {missing[0]:05d} are missing: run the share that lacks them"
            )
        if self.config.neighbours:
            answers = self._folder("answers").digest
            self._make("projection", range(1), answers, self._fit)
            self._make(
                "keys", self._numbers, answers + self._folder("projection").digest, self._write_keys
            )
        self._assemble()

    @cached_property
    def questions(self) -> Questions:
        """The questions, without those of the share `test`."""
        found = stored_questions(self._work, self.config, self._reporter)
        return Questions(
            [question for question in found if question.split != "test"],
            self.config.shard_questions,
        )

    @property
    def _numbers(self) -> range:
        return range(len(self.questions))

    @cached_property
    def _lm(self) -> CausalLM:
        return load_model(self.config.target)

    @cached_property
    def _layer(self) -> int:
        last = self._lm.info.num_layers
        layer = round(0.75 * last) if self.config.layer is None else self.config.layer
        if layer > last:
            raise InvalidRequest(
                f"layer: {layer}, but the states of {self.config.target.model} have rows 0 to {last}"
            )
        return layer

    def _folder(self, stage: str) -> StageFolder:
        return StageFolder(self._work / stage)

    def _make(
        self, stage: str, numbers: Sequence[int], inputs: str, make: Callable[[int], None]
    ) -> None:
        folder = self._folder(stage)
        folder.claim(self._recipe(stage))
        missing = [number for number in numbers if not folder.is_done(number, inputs)]
        with self._reporter.bar(
            stage, len(numbers), "shards", len(numbers) - len(missing)
        ) as advance:
            for number in missing:
                make(number)
                folder.commit(number, [".safetensors"], inputs, target=info_json(self._lm.info))
                advance(1)

    def _recipe(self, stage: str) -> Row:
        settings = {
            "answers": {"answers"},
            "projection": {"layer", "width", "fit_tokens"},
            "keys": {"layer", "width"},
        }
        return self.config.model_dump(
            mode="json", include={"target", "prompt", "shard_questions"} | settings[stage]
        )

    def _write_answers(self, number: int) -> None:
        questions = [self.questions.all[index] for index in self.questions.numbers(number)]
        starts = [self._prompt(question) for question in questions]
        if self.config.answers.source == "data":
            answers = [[self._given(question)] for question in questions]
        else:
            answers = asyncio.run(self._written(starts, [question.id for question in questions]))
        pairs = [
            ([*start.token_ids], answer)
            for start, question_answers in zip(starts, answers, strict=True)
            for answer in question_answers
        ]
        tensors = {
            "tokens": torch.tensor(
                [token for prompt, answer in pairs for token in prompt + answer]
            ),
            "prompt_lengths": torch.tensor([len(prompt) for prompt, _ in pairs]),
            "lengths": torch.tensor([len(prompt + answer) for prompt, answer in pairs]),
        }
        write_tensors(self._folder("answers").file(number, ".safetensors"), tensors)

    def _prompt(self, question: Question) -> Piece:
        tokenizer = self._lm.tokenizer
        piece = prompts(question, self.config.prompt, tokenizer, tokenizer).target
        tokenizer.check_room(len(piece.token_ids), "prompt")
        return piece

    def _given(self, question: Question) -> list[int]:
        if not question.trace:
            raise InvalidRequest(
                f"question {question.id} has no answer",
                remedy="name the field that holds it (questions.trace), or have the "
                "target write it (answers.source: target)",
            )
        return self._lm.tokenizer.ids_of(question.trace)

    async def _written(self, prompts: Sequence[Piece], ids: Sequence[str]) -> list[list[list[int]]]:
        """Return the target's answers to each prompt, all written concurrently."""
        config = self.config.answers
        engine = TorchEngine(self._lm, Writer.TARGET, _CACHE_BYTES)

        async def answer(prompt: Piece, seed: int) -> list[int]:
            sampling = replace(config.sampling, seed=seed)
            params = GenerationParams(sampling, max_segments=0, max_tokens=config.max_tokens)
            stream = engine.generate(Context((prompt,)), params)
            return [token async for generated in stream for token in generated.segment.token_ids]

        async def answers(prompt: Piece, question: str) -> list[list[int]]:
            seeds = [
                derive_seed(config.seed, f"answer {question}", index)
                for index in range(config.per_question)
            ]
            return list(await asyncio.gather(*(answer(prompt, seed) for seed in seeds)))

        try:
            return list(await asyncio.gather(*map(answers, prompts, ids)))
        finally:
            await engine.aclose()

    def _documents(self, number: int) -> Iterator[tuple[list[int], int]]:
        """Yield the tokens of each prompt with its answer, and the length of the prompt."""
        tensors = self._folder("answers").tensors(number)
        ends = [0, *tensors["lengths"].cumsum(0).tolist()]
        for (start, end), num_prompt in zip(
            pairwise(ends), tensors["prompt_lengths"].tolist(), strict=True
        ):
            yield tensors["tokens"][start:end].tolist(), num_prompt

    def _states(self, number: int) -> Iterator[Tensor]:
        """Yield the states before each token of an answer, fp32 `[num_answer_tokens, hidden_size]`, by document."""
        for tokens, num_prompt in self._documents(number):
            forward = self._lm.forward(tokens[:-1], self._lm.new_kv(), want_states=True)
            yield forward.states[self._layer, num_prompt - 1 :].float().cpu()

    def _fit(self, _: int) -> None:
        parts, num_tokens = list[Tensor](), 0
        for number in self._numbers:
            for states in self._states(number):
                parts.append(states)
                num_tokens += len(states)
            if num_tokens >= self.config.fit_tokens:
                break
        if num_tokens < self.config.width:
            raise InvalidRequest(
                f"width: {self.config.width} components of {num_tokens} tokens of answers",
                remedy="give more questions",
            )
        fitted = Projection.fitted(torch.cat(parts).numpy(), self.config.width)
        tensors = {"mean": torch.from_numpy(fitted.mean), "weight": torch.from_numpy(fitted.weight)}
        write_tensors(self._folder("projection").file(0, ".safetensors"), tensors)

    @cached_property
    def _projection(self) -> Projection:
        tensors = self._folder("projection").tensors(0)
        return Projection(tensors["mean"].numpy(), tensors["weight"].numpy())

    def _write_keys(self, number: int) -> None:
        keys = np.concatenate(
            [self._projection.keys(states.numpy()) for states in self._states(number)]
        )
        tensors = {"keys": torch.from_numpy(keys).half()}
        write_tensors(self._folder("keys").file(number, ".safetensors"), tensors)

    def _assemble(self) -> None:
        documents = [document for number in self._numbers for document in self._documents(number)]
        tokens: TokenArray = np.concatenate(
            [[*document, DOCUMENT_END] for document, _ in documents]
        ).astype(np.uint32)
        data = digest_of([self._folder("questions").digest, self._folder("answers").digest])
        neighbours = None
        if self.config.neighbours:
            shards = [self._folder("keys").tensors(number)["keys"] for number in self._numbers]
            keys, places = torch.cat(shards).float().numpy(), _answer_places(documents)
            neighbours = self._layer, self._projection, build_index(keys, places), len(places)
        places_by_context = sorted_places(tokens)
        card = write_datastore(
            self.config.output, self._lm.info, data, tokens, places_by_context, neighbours
        )
        num_bytes = sum(card.sizes.values())
        self._reporter.say(
            f"{self.config.output}: {card.num_tokens} tokens, {card.num_entries} entries, {num_bytes / 1e6:.1f} MB"
        )


def _answer_places(documents: Sequence[tuple[list[int], int]]) -> NDArray[np.int64]:
    """Return the position of each token of an answer in the tokens of all documents, each followed by an end token."""
    starts = np.cumsum([0, *(len(tokens) + 1 for tokens, _ in documents)])
    spans = zip(starts.tolist(), documents, strict=False)
    return np.concatenate(
        [
            np.arange(start + num_prompt, start + len(tokens))
            for start, (tokens, num_prompt) in spans
        ]
    )
