"""Answers questions of the demo language from their text, independently of the code that makes them."""

import re

GAIN, LOSE = ("buys", "finds", "gets"), ("loses", "sells", "drops")


def solve(question: str) -> int:
    """The answer."""
    return _boxes(question) if question.startswith("Four boxes") else _ledger(question)


def _ledger(question: str) -> int:
    [start] = re.findall(r"has [a-z]+: (\d+)\.", question)
    changes = re.findall(r"Day \d+: \w+ (\w+) (\d+) ", question)
    return int(start) + sum(
        int(number) * {**dict.fromkeys(GAIN, 1), **dict.fromkeys(LOSE, -1)}[verb] for verb, number in changes
    )


def _boxes(question: str) -> int:
    digits = {box: int(digit) for box, digit in re.findall(r"\b([abcd])(\d)", question)}
    for order in re.findall(r"Move \d+: ([^.]*)\.", question):
        names = re.findall(r"\b[abcd]\b", order)
        amounts = [int(number) for number in re.findall(r"\d+", order)]
        row = [digits[box] for box in "abcd"]
        match order.split()[0]:
            case "swap":
                digits[names[0]], digits[names[1]] = digits[names[1]], digits[names[0]]
            case "add":
                digits[names[0]] += amounts[0]
            case "take":
                digits[names[0]] -= amounts[0]
            case _:
                turned = {"shift on": [row[-1], *row[:-1]], "shift back": [*row[1:], row[0]], "turn round": row[::-1]}
                digits = dict(zip("abcd", turned[order], strict=True))
    return int("".join(str(digits[box]) for box in "abcd"))
