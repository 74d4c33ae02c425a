"""What the strategy `auto` has learned here, for each way of judging by itself."""

from collections import OrderedDict

from semspec.decoding import Costs
from semspec.types import Generation

MAX_KINDS = 64


class CostTable:
    """A stricter rule accepts less, another segmentation has other lengths: what one learned misleads the other."""

    def __init__(self) -> None:
        self._costs: OrderedDict[tuple[str, str, float], Costs] = OrderedDict()

    def of(self, generation: Generation) -> Costs:
        """Those of generations like this one; the kind that was not asked for longest is forgotten."""
        acceptance = generation.acceptance
        kind = (generation.segmentation.value, acceptance.rule, round(acceptance.threshold, 1))
        costs = self._costs.setdefault(kind, Costs())
        self._costs.move_to_end(kind)
        if len(self._costs) > MAX_KINDS:
            self._costs.popitem(last=False)
        return costs
