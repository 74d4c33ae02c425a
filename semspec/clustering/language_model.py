"""Clusters segments by bidirectional entailment that a language model judges.

The question whether one step entails another is that of Farquhar et al. (2024). The answer is read from the logits: one
forward pass over the question gives the probability of "yes" against "no".
"""

from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from semspec.clustering.entailment import PairCounts, distinct_texts, normalized
from semspec.clustering.equivalence import Alternatives, in_order_of_appearance
from semspec.engine.batch import ContextBatch
from semspec.engine.causal_lm import CausalLM
from semspec.engine.conversation import render
from semspec.errors import InvalidRequest, Mismatch
from semspec.reasoning import opened_form
from semspec.types import Conversation, Message

YES = ("Yes", "yes", " Yes", " yes")
NO = ("No", "no", " No", " no")
"""Spellings of the answers. The first token of each is used, unless both answers have it."""
PROMPT = """\
We are evaluating possible next steps of a solution to this problem:

{question}

The solution so far:
{reasoning}

Here are two possible next steps:
Possible step 1: {premise}
Possible step 2: {hypothesis}

Given the problem and the solution so far, does possible step 1 semantically entail possible step 2?
Answer yes or no."""
"""The prompt of Farquhar et al. (2024), adapted to steps after a context."""
NO_REASONING = "(nothing yet)"


class LanguageModelConfig(BaseModel):
    """Equivalence by bidirectional entailment that a language model judges."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    kind: Literal["model"]
    model: str = Field(
        min_length=1,
        description="folder, GGUF file, hub id, or ID:FILE.gguf; in training, unset: the target, as it is loaded there",
    )
    revision: str | None = None
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "packed"] = "auto"
    threshold: float = Field(
        0.5, gt=0, lt=1, description="least probability of yes, against no, in both directions"
    )
    batch_size: int = Field(16, ge=1, description="pairs a forward")


class EntailmentPrompt:
    """The model's prompts about pairs of texts, and its answers to them. Not thread-safe."""

    def __init__(self, lm: CausalLM, batch_size: int) -> None:
        """Raises: Mismatch when the model's tokenizer cannot tell the answers apart by one token."""
        self._lm, self._batch_size = lm, batch_size
        self._shared: list[int] = []
        self._batch: ContextBatch | None = None
        prompt = self.text(Alternatives("", "Why?", "", ()), "a", "b")
        yes, no = (
            {lm.tokenizer.tokens_after(prompt, word)[0].id for word in words} for words in (YES, NO)
        )
        self.yes, self.no = sorted(yes - no), sorted(no - yes)
        if not self.yes or not self.no:
            raise Mismatch(
                f"{lm.info.model} has no tokens that distinguish yes from no",
                remedy="set another model in equivalence.model",
            )

    def fits(self, context: Alternatives, text: str) -> bool:
        """Whether a pair of texts as long as `text` fits the model's window."""
        return len(self.ids(context, text, text)) <= self._lm.info.max_context_tokens

    def probabilities(self, context: Alternatives, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the probability, for each pair, that the first text entails the second."""
        prompts = [self.ids(context, *pair) for pair in pairs]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        probabilities = [0.0] * len(prompts)
        for start in range(0, len(order), self._batch_size):
            part = order[start : start + self._batch_size]
            answers = self._answers(context, [prompts[index] for index in part])
            for index, probability in zip(part, answers, strict=True):
                probabilities[index] = probability
        return probabilities

    def _answers(self, context: Alternatives, prompts: Sequence[list[int]]) -> list[float]:
        heads = [self.ids(context, text, text) for text in ("A", "1")]
        columns = zip(*heads, *prompts, strict=False)
        shared = [tokens[0] for tokens in takewhile(lambda tokens: len(set(tokens)) == 1, columns)]
        if self._batch is None or shared != self._shared:
            self._batch = None  # free its memory first
            self._shared, self._batch = shared, ContextBatch(self._lm, shared)
        logits = self._batch.last_logits([prompt[len(shared) :] for prompt in prompts]).float()
        yes, no = (logits[:, tokens].logsumexp(-1) for tokens in (self.yes, self.no))
        probabilities: list[float] = torch.sigmoid(yes - no).tolist()
        return probabilities

    def ids(self, context: Alternatives, premise: str, hypothesis: str) -> list[int]:
        """Return the token ids of the prompt about a pair."""
        is_plain = self._lm.tokenizer.raw.chat_template is None
        text = self.text(context, premise, hypothesis)
        return self._lm.tokenizer.ids_of(text, add_special_tokens=is_plain)

    def text(self, context: Alternatives, premise: str, hypothesis: str) -> str:
        """Return the prompt about a pair, in the model's chat template; plain text if there is no template.

        Reasoning that the template opens is closed.
        """
        content = PROMPT.format(
            question=context.question.strip(),
            reasoning=context.reasoning.strip() or NO_REASONING,
            premise=premise,
            hypothesis=hypothesis,
        )
        raw = self._lm.tokenizer.raw
        if raw.chat_template is None:
            return f"{content}\nAnswer:"
        text = render(raw, Conversation((Message("user", content),)), self._lm.info.model)
        form = opened_form(text)
        return f"{text}{form.answer}" if form else text


class LanguageModelEquivalence(PairCounts):
    """Clusters segments that entail each other; see `semspec.clustering.equivalence.Equivalence`.

    As in `EntailmentEquivalence`, texts that differ only in white space or final punctuation are equal without a
    forward pass, texts without a word form one cluster, and distinct texts are compared by descending frequency. A text
    joins the first equivalent representative, by descending number of common words. It is compared with all
    representatives in batches, which share the context. A text that does not fit the model's window has no cluster.
    """

    def __init__(self, prompt: EntailmentPrompt, threshold: float) -> None:
        super().__init__()
        self.prompt, self._threshold = prompt, threshold

    @classmethod
    def load(cls, config: LanguageModelConfig) -> "LanguageModelEquivalence":
        """Load the model. Raises: Mismatch when it cannot be loaded, or cannot answer."""
        lm = CausalLM.load(config.model, config.revision, config.device, config.dtype)
        try:
            prompt = EntailmentPrompt(lm, config.batch_size)
        except InvalidRequest as error:
            raise Mismatch(f"equivalence.model: {error.message}", remedy=error.remedy) from error
        return cls(prompt, config.threshold)

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        return [self._cluster(group) for group in groups]

    def _cluster(self, group: Alternatives) -> list[int | None]:
        representatives: list[str] = []
        found: dict[str, str | None] = {}
        texts = distinct_texts(group.segments)
        for key, text in texts.items():
            if not self.prompt.fits(group, text):
                found[key] = None
                continue
            representative = self._equivalent(group, text, key, representatives, texts)
            if representative is None:
                representatives.append(key)
            found[key] = key if representative is None else representative
        meanings = [found[normalized(segment)] for segment in group.segments]
        self.counts["num_too_long"] += meanings.count(None)
        return in_order_of_appearance(meanings)

    def _equivalent(
        self,
        group: Alternatives,
        text: str,
        key: str,
        representatives: Sequence[str],
        texts: dict[str, str],
    ) -> str | None:
        """Return the first equivalent representative, by descending number of common words; None if there is none."""
        words = Counter(key.split())
        common = {other: (Counter(other.split()) & words).total() for other in representatives}
        candidates = [
            other for other in sorted(common, key=lambda other: -common[other]) if other and key
        ]
        candidates = self._entailed(group, [(other, texts[other], text) for other in candidates])
        candidates = self._entailed(group, [(other, text, texts[other]) for other in candidates])
        return next(iter(candidates), None)

    def _entailed(self, group: Alternatives, asked: Sequence[tuple[str, str, str]]) -> list[str]:
        """Return the names of those (name, premise, hypothesis) that are entailments."""
        pairs = [(premise, hypothesis) for _, premise, hypothesis in asked]
        self.counts["num_forwards"] += len(pairs)
        probabilities = self.prompt.probabilities(group, pairs)
        return [
            name
            for (name, *_), probability in zip(asked, probabilities, strict=True)
            if probability >= self._threshold
        ]
