"""The 14 cells of the factorial, and the effects of its factors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

RECIPES: Mapping[str, Mapping[str, str]] = {
    "paper": {"labels": "own", "loss": "mse"},
    "cross": {"labels": "cross", "loss": "bce"},
}
FEATURES = ("states", "states+surprisal")
LAYERS = ("all", "middle", "last")
SURPRISAL = "surprisal"
NONE_OF_THEM = "no states"


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to make both probes."""

    recipe: str
    features: str
    layers: str

    @property
    def name(self) -> str:
        return f"{self.recipe}/{self.features}/{self.layers}"

    @property
    def has_states(self) -> bool:
        return self.features != SURPRISAL


CELLS = (
    *(Cell(*one) for one in product(RECIPES, FEATURES, LAYERS)),
    *(Cell(recipe, SURPRISAL, NONE_OF_THEM) for recipe in RECIPES),
)
"""The 14 cells."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A factor's levels: the mean of `cells` minus the mean of those that differ from them in this factor alone."""

    name: str
    cells: tuple[int, ...]
    minus: tuple[int, ...]


def effects() -> Iterator[Effect]:
    def numbers(**wanted: str) -> tuple[int, ...]:
        return tuple(n for n, cell in enumerate(CELLS) if all(getattr(cell, key) == v for key, v in wanted.items()))

    for features in (*FEATURES, SURPRISAL):
        name = f"cross instead of the paper's recipe, {features}"
        yield Effect(name, numbers(recipe="cross", features=features), numbers(recipe="paper", features=features))
    for recipe in RECIPES:
        with_surprisal = numbers(recipe=recipe, features=FEATURES[1])
        yield Effect(
            f"surprisal added to states, {recipe}", with_surprisal, numbers(recipe=recipe, features=FEATURES[0])
        )
        yield Effect(f"states added to surprisal, {recipe}", with_surprisal, numbers(recipe=recipe, features=SURPRISAL))
    for layers in ("all", "middle"):
        yield Effect(f"{layers} layers instead of the last", numbers(layers=layers), numbers(layers="last"))
