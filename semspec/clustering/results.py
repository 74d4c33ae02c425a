"""Clusters steps of mathematics by their results: the last number, expression or right-hand side.

`math_verify` is not used, because it takes the number in "Step 2:" for an answer, and needs a separate process to be
safe with numbers that a model wrote.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import Literal

from pydantic import BaseModel, ConfigDict

from semspec.clustering.entailment import normalized
from semspec.clustering.equivalence import Alternatives, in_order_of_appearance

MAX_CHARACTERS = 100
"""Longer expressions are compared as text."""
MAX_EXPONENT, MAX_BITS = 64, 4096
"""Limits on the exponent of a power and on its value. Larger powers are compared as text."""

OPERATORS = frozenset({*"+-*/^(=<>", "<=", ">=", "<>"})
"""An expression does not end after these. A closing parenthesis or a comma belongs to it only inside parentheses."""

Result = Fraction | str
"""A number, or an expression without white space."""


class ResultsConfig(BaseModel):
    """Equivalence of steps by their results."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["results"]


class ResultsEquivalence:
    """Clusters steps with equal results; see `semspec.clustering.equivalence.Equivalence`.

    Steps without a result are equivalent if they have the same words.
    """

    def clusters(self, groups: Sequence[Alternatives]) -> list[list[int | None]]:
        return [in_order_of_appearance(list(map(_meaning, group.segments))) for group in groups]


def _meaning(segment: str) -> tuple[str, Result]:
    result = result_of(segment)
    return ("words", normalized(segment)) if result is None else ("result", result)


_COMMANDS = r"pi|sqrt|sin|cos|tan|log|ln|alpha|beta|theta|infty"
_REWRITTEN = [
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"<<[^<>]*>>", ""),  # calculator annotations in GSM8K
        (r"\*\*|__|`", ""),  # Markdown
        (r"^\s*(?:[-*+•]|\d+[.)])\s+", ""),  # items of a list
        (r"(?i)\b(?:step|case|part)\s+\d+\b", ""),
        (r"^\s*#+", ""),
        (r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r" \1 "),
        (r"²", "^2"),
        (r"³", "^3"),
        (r"(?<=[a-zA-Z]{2})(?<!pi)\s*\^\s*\{?\d\}?", ""),  # exponents of units
        (r"\^\s*\{(\w+)\}", r"^\1"),
        (r"\^\s*\{?\s*\\circ\s*\}?|°|\\?%|\\?\$|\\[()\[\],;!:]|\\ |[€£]", ""),
        (r"\\(?:left|right|displaystyle|big|Big)(?![a-z])", ""),
        (r"\\[dt]frac", r"\\frac"),
        (r"_\{?\w+\}?", ""),  # subscripts of variables
        (r"(?<=\d)\{?,\}?(?=\d{3}(?!\d))", ""),
        (r"\\(?:times|cdot)(?![a-z])|[\u00d7·⋅]|(?<=\d)\s+x\s+(?=\d)", "*"),
        (r"\\div(?![a-z])|÷", "/"),
        (r"(?<=\d)\s*:\s*(?=\d)", "/"),
        (r"[\u2212\u2013]", "-"),
        (r"\\approx(?![a-z])|≈|\\equiv(?![a-z])", "="),
        (r"\\(?:leq|le|leqslant)(?![a-z])|≤", "<="),
        (r"\\(?:geq|ge|geqslant)(?![a-z])|≥", ">="),
        (r"\\(?:neq|ne)(?![a-z])|≠", "<>"),
        (r"\\lt(?![a-z])", "<"),
        (r"\\gt(?![a-z])", ">"),
        (r"√\s*(\d+)", r"sqrt(\1)"),
        (r"√", "sqrt"),
        (r"π", "pi"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (rf"\\({_COMMANDS})(?![a-zA-Z])", r"\1"),
    )
]
_MIXED = re.compile(r"(?<![\w.])(\d+)(?:\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}|\s+(\d+)/(\d+))")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_BRACED = re.compile(r"(sqrt|\^)\s*\{([^{}]*)\}")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TOKEN = re.compile(rf"\s*(\d+(?:\.\d+)?|\.\d+|(?:{_COMMANDS})(?![a-zA-Z])|[a-zA-Z]+|<=|>=|<>|\S)")
_OPERAND = re.compile(rf"[\d.]*\d|{_COMMANDS}|[a-zA-Z]")


def result_of(text: str) -> Result | None:
    """Return the last result in `text`; None if there is none.

    Units, currencies and the signs of percent and degree are left out. The result of an expression of numbers is its
    value; any other expression is text without white space. Inequalities and coordinates are results, too.
    """
    box = _last_box(text)
    found = list(_expressions(_plain(text if box is None else box)))
    if not found:
        return None if box is None else " ".join(re.findall(r"\w+", _plain(box))) or None
    expression = found[-1]
    left, _, right = expression.rpartition("=")
    if re.search(r"[<>]", expression):
        return expression
    return _value(right) if right or not left else _value(left)


def _last_box(text: str) -> str | None:
    """Return the content of the last box; None if there is no box."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for end in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[starts[-1] : end]
    return text[starts[-1] :]


def _plain(text: str) -> str:
    """Return `text` with the mathematics of LaTeX and Markdown in plain characters."""
    for pattern, replacement in _REWRITTEN:
        text = pattern.sub(replacement, text)
    text = _MIXED.sub(
        lambda found: "({}+{}/{})".format(*(part for part in found.groups() if part)), text
    )
    for _ in range(8):  # levels of nested fractions
        reduced = _FRACTION.sub(r"((\1)/(\2))", _BRACED.sub(r"\1(\2)", text))
        if reduced == text:
            break
        text = reduced
    return text


def _expressions(text: str) -> Iterator[str]:
    """Yield each expression with a number or a relation, without white space.

    An expression ends at a word, at punctuation outside parentheses, and at white space between two operands.
    """
    parts, num_open = list[str](), 0
    for match in _TOKEN.finditer(text):
        part, is_apart = match[1], match[0][:1].isspace()
        is_operand = bool(_OPERAND.fullmatch(part))
        follows_operand = bool(parts) and bool(_OPERAND.fullmatch(parts[-1]) or parts[-1] == ")")
        is_kept = is_operand or part in OPERATORS or (part in (",", ")") and num_open > 0)
        if not is_kept or (is_apart and follows_operand and (is_operand or part == "(")):
            yield from _trimmed(parts)
            parts, num_open = [], 0
        if is_kept:
            parts.append(part)
            num_open += {"(": 1, ")": -1}.get(part, 0)
    yield from _trimmed(parts)


def _trimmed(parts: list[str]) -> Iterator[str]:
    """Yield the expressions of `parts`, without operators at their ends.

    An unclosed parenthesis, such as one before words, separates two expressions.
    """
    first = 0
    for index in _unclosed(parts):
        yield from _trimmed(parts[first:index])
        first = index + 1
    parts = parts[first:]
    while parts and parts[-1] in OPERATORS | {","}:
        parts = parts[:-1]
    while parts and parts[0] in "+*/^":
        parts = parts[1:]
    if any(part[-1].isdigit() or part == "=" for part in parts):
        yield "".join(parts)


def _unclosed(parts: Sequence[str]) -> list[int]:
    """Return the indices of parentheses that are not closed."""
    indices = list[int]()
    for index, part in enumerate(parts):
        if part == "(":
            indices.append(index)
        elif part == ")":
            indices.pop()
    return indices


def _value(expression: str) -> Result:
    """Return the value of an expression of numbers, or any other expression without multiplication signs."""
    if len(expression) <= MAX_CHARACTERS:
        with suppress(ValueError, SyntaxError, ZeroDivisionError):
            return _evaluate(expression)
    return _without_outer_parentheses(expression.replace("*", ""))


def _without_outer_parentheses(expression: str) -> str:
    """Return `expression` without parentheses around all of it, unless they hold coordinates."""
    while expression.startswith("(") and expression.endswith(")") and "," not in expression:
        inner = expression[1:-1]
        depths, depth = [], 0
        for character in inner:
            depth += {"(": 1, ")": -1}.get(character, 0)
            depths.append(depth)
        if not inner or min(depths) < 0:
            break
        expression = inner
    return expression


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _evaluate(expression: str) -> Fraction:
    """Return the value of an expression of numbers. Raises: ValueError, SyntaxError, ZeroDivisionError."""
    if re.search(r"[^\d.()+*/^-]|\*\*|\.(?!\d)", expression):
        raise ValueError(expression)
    source = re.sub(r"(?<![\d.])0+(?=\d)", "", expression)
    source = re.sub(r"(?<=[\d)])\(", "*(", source).replace("^", "**")
    return _value_of(ast.parse(source, mode="eval").body, source)


def _value_of(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant():
            return Fraction(ast.get_source_segment(source, node) or "")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value_of(operand, source)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value_of(operand, source)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            exponent = _value_of(right, source)
            if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
                raise ValueError("the power is not computed")
            base = _value_of(left, source)
            num_bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if num_bits * abs(exponent) > MAX_BITS:
                raise ValueError("the power is too large")
            return base ** int(exponent)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value_of(left, source), _value_of(right, source))
    raise ValueError(source)
