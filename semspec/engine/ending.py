"""Whether the tokens written so far are a whole segment."""

from collections.abc import Sequence

from semspec.engine.causal_lm import CausalLM
from semspec.engine.segmentation import RULES
from semspec.types import Segmentation, SegmentEnd


def end_after(
    lm: CausalLM, segmentation: Segmentation, context: Sequence[int], tokens: Sequence[int], max_tokens: int
) -> SegmentEnd | None:
    """Why the segment `tokens` ends with its last token, if it does."""
    if tokens[-1] in lm.eos_ids:
        return SegmentEnd.EOS
    if _may_end(lm, segmentation, tokens[-1]) and RULES[segmentation].ends_inside(lm.text_of(context, tokens)):
        return SegmentEnd.BOUNDARY
    return SegmentEnd.LENGTH if len(tokens) >= max_tokens else None


def ends_before(
    lm: CausalLM, segmentation: Segmentation, context: Sequence[int], tokens: Sequence[int], following: int
) -> bool:
    """Whether `following` shows that the segment had ended with `tokens`."""
    if not tokens or not (_may_end(lm, segmentation, tokens[-1]) or _may_end(lm, segmentation, following)):
        return False
    return RULES[segmentation].ends_before(lm.text_of(context, tokens), lm.token_text(following))


def _may_end(lm: CausalLM, segmentation: Segmentation, token: int) -> bool:
    return not RULES[segmentation].marks.isdisjoint(lm.token_text(token))
