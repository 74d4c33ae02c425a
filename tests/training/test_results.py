"""Results that steps state: what is taken for one, and which are equal."""

from fractions import Fraction

import pytest

from semspec.clustering.results import ResultsEquivalence, result_of
from tests.training.support import group


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (r"**Step 1:** Divide both sides by 3: $x = \frac{28}{6} = \frac{14}{3}$", "14/3"),
        ("12*3 = 36", "36"),
        ("So x = 5.", "5"),
        ("the total is 1,250 dollars", "1250"),
        (r"The total is \$1,250.00.", "1250"),
        (r"\[ 5 \times 4 = 20 \]", "20"),
        (r"\(48 \div 2 = 24\) clips", "24"),
        ("She sold 48/2 = <<48/2=24>>24 clips in May.", "24"),
        ("- Total: 3 + 4", "7"),
        ("#### 72", "72"),
        (r"Therefore, the answer is $\boxed{\dfrac{3}{56}}$, from 8 choices.", "3/56"),
        (r"\boxed{\text{x} = -7}", "-7"),
        (r"\frac12", "1/2"),
        (r"$3\frac{1}{2}$ cups", "7/2"),
        ("3 1/2 cups", "7/2"),
        (r"a discount of 20\%", "20"),
        ("x = \u22123", "-3"),
        ("It is -3 - (-5).", "2"),
        (r"The area is $12 \text{ cm}^2$.", "12"),
        ("The area is 12 square cm^2", "12"),
        (r"\boxed{10\text{ hours}}", "10"),
        (r"a right angle of $90^\circ$", "90"),
        (r"$2^{10} = 1{,}024$", "1024"),
        ("x_1 = 6", "6"),
        ("0.5 of them", "1/2"),
        ("(about 5 of them)", "5"),
        (r"\frac{\frac{1}{2}}{3}", "1/6"),
    ],
)  # fmt: skip
def test_stated_number_is_the_last_one(text: str, result: str) -> None:
    assert result_of(text) == Fraction(result)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Step 2: Now compute the area.",
        "### Step 3",
        "2. Subtract a from b.",
        "I think that this is a square.",
        "**Solution:**",
        "The two-digit numbers are even.",
    ],
)
def test_step_without_a_number_states_none(text: str) -> None:
    assert result_of(text) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"The area is $2\sqrt{3}$ cm.", r"area = 2 \cdot \sqrt{3}"),
        ("f(x) = 2x + 3", r"So $f(x) = 2 * x+3$."),
        (r"\boxed{\text{(B)}}", r"\boxed{(\text{B})}"),
        (r"$\frac{\pi}{2}$ is 90 degrees: $\boxed{\frac{\pi}{2}}$", r"y = \left(\dfrac{\pi}{2}\right)"),
        (r"the point $(3, \frac{\pi}{2})$", r"\boxed{\left( 3, \frac{\pi}{2} \right)}"),
        (r"x \geq 5", "x ≥ 5"),
        ("7^{77}", "7^77"),
        ("y = x²", "$y = x^{2}$"),
    ],
)  # fmt: skip
def test_equal_expressions_are_one_result(one: str, other: str) -> None:
    assert result_of(one) == result_of(other) is not None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = 5", "x = -5"),
        ("x > 5", "x = 5"),
        ("x > 5", "x < 5"),
        ("(3, 4)", "(5, 4)"),
        ("the ratio is 3:4", "the ratio is 5:4"),
        ("1,250", "1.250"),
        ("x = 2a", "x = 2b"),
    ],
)
def test_other_results_differ(one: str, other: str) -> None:
    assert result_of(one) != result_of(other)


@pytest.mark.parametrize(
    "text",
    [
        "9^9^9^9",
        "((((9^64)^64)^64)^64)",
        "10^10000000",
        "1/0",
        "(" * 5000 + "1",
        "\\boxed{",
        "1" * 5000,
        "-" * 900 + "1",
        "(1" * 5000,
        "(1" * 40 + ")" * 40,
    ],
)
def test_hostile_text_has_some_result_or_none(text: str) -> None:
    assert result_of(text) == result_of(text)


def test_steps_without_results_are_compared_by_their_words() -> None:
    steps = [
        "12*3 = 36",
        "We add  the sides.",
        "Step 1: the total is 36.",
        "We add the sides",
        "We add the angles.",
        "So x = 5.",
    ]
    assert ResultsEquivalence().clusters([group(*steps), group()]) == [[0, 1, 0, 1, 2, 3], []]
