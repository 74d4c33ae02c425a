"""What may be in a text that leaves a process."""

from json import dumps


def one_line(text: str) -> str:
    """`text`, with what terminals interpret escaped as in JSON: line breaks, other control characters, direction."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else dumps(character)[1:-1] for character in text)


def is_utf8(text: str) -> bool:
    """Whether `text` can be encoded: a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
