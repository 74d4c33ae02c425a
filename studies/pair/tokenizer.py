"""Train the pair's tokenizer: `python -m studies.pair.tokenizer` writes tokenizer.json of the demo, for new models."""

from collections.abc import Iterable, Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from semspec_bench.spec_reason import PREFILL, QUESTION
from semspec_demo.documents import write_document
from semspec_demo.problems import SPLITS
from semspec_demo.tokenizer import END, END_OF_TEXT, FILE, START, vocabulary_texts

VOCABULARY_SIZE = 1024
PIECE = r" ?\p{L}+| ?\p{N}|</?think>\n*| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer trained on texts of a language."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _texts() -> Iterator[str]:
    for text in (QUESTION, PREFILL, "user\n", "assistant\n<think>\n\n", *vocabulary_texts()):
        yield from [text] * 50
    for seed in SPLITS["train"][:1500]:
        document = write_document(seed)
        yield document.problem.question + document.solution


if __name__ == "__main__":
    train_tokenizer(_texts()).save(str(FILE))
