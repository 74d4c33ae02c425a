"""The pair's tokenizer: one token per word, per digit, and for the delimiter."""

import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from semspec.demo.documents import END, THINK, write_document
from semspec.demo.problems import SPLITS
from semspec.demo.wording import DRAFT_AUTHOR, TARGET_AUTHOR, vocabulary_texts

SPECIALS = ("<pad>", END, "<unk>")
PIECE = r"</?think>|<eos>|\n\n|\n| ?[A-Za-z]+| ?[0-9]|\\boxed|[^\sA-Za-z0-9]| [-+*/=]| "
# The language has no dialogue: the last turn is the question.
CHAT_TEMPLATE = "{{ messages[-1]['content'] + '" + THINK.replace("\n", "\\n") + "' }}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A deterministic tokenizer: its vocabulary is the sorted words of the grammar and of sample problems."""
    vocabulary = {piece: index for index, piece in enumerate([*SPECIALS, *_pieces()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token="<pad>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _pieces() -> list[str]:
    pieces: set[str] = set("0123456789") | {f" {digit}" for digit in range(10)}
    texts = list(vocabulary_texts())
    for seed in SPLITS["train"][:3000]:
        for author in (TARGET_AUTHOR, DRAFT_AUTHOR):
            document = write_document(seed, author)
            texts += [document.prompt, document.solution]
    for text in texts:
        pieces.update(re.findall(PIECE, text))
    return sorted(pieces - set(SPECIALS))
