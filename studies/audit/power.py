"""Simulate the audit's test: false alarms, and audited segments until a loss is found.

Contexts and samples are those of `tests/gateway/test_loss.py`. Each row has `--runs` runs with a fixed seed: points of
support lost, segments without loss before, share of runs with an alarm within 1,000 segments after, and the median and
90% quantile of the segments until it. Usage: `python -m studies.audit.power [--runs 1000]`
"""

import argparse
from random import Random

from semspec.gateway.generation.loss import Finding, LossTest, finding

NUM_SAMPLES = 8
RARE = -7
"""A meaning that the target never has."""
NUM_FINDINGS, NUM_AFTER, OWN_SUPPORT = 20_000, 1000, 0.93


def target_writes(random: Random, shares: tuple[float, ...]) -> int:
    """A meaning drawn from the target's distribution in one context; the last one stands for rare meanings."""
    meaning = random.choices(range(len(shares)), shares)[0]
    return meaning if meaning < len(shares) - 1 else random.randrange(1000, 1_000_000)


def audited(random: Random, lost: float) -> Finding:
    """One accepted segment in a context of its own: the target's own, or with probability `lost` one that it never
    writes. Contexts differ in how many meanings the target chooses from; a twentieth of its segments are rare ones."""
    shares = random.choice([(0.95, 0.05), (0.6, 0.35, 0.05), (0.4, 0.3, 0.25, 0.05)])
    own = RARE if random.random() < lost else target_writes(random, shares)
    return finding([own, *(target_writes(random, shares) for _ in range(NUM_SAMPLES))])


def until_alarm(random: Random, good: list[float], lossy: list[float], num_good: int) -> int | None:
    """Segments after the first `num_good` until the alarm; negative before them, None if there is none."""
    test = LossTest(tolerance=0.02)
    losses = random.choices(good, k=num_good) + random.choices(lossy, k=NUM_AFTER)
    for number, loss in enumerate(losses, 1):
        test.add(loss)
        if test.has_alarm:
            return number - num_good
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    num_runs = parser.parse_args().runs
    random = Random(5)
    good = [audited(random, 0.0).loss for _ in range(NUM_FINDINGS)]
    print("| lost | good before | alarm | median | 90% |\n|---|---|---|---|---|")
    for lost in (0, 2, 5, 10, 20):
        lossy = [audited(random, lost / 100 / OWN_SUPPORT).loss for _ in range(NUM_FINDINGS)]
        for num_good in (0, 1000, 10_000):
            found = [until_alarm(random, good, lossy, num_good) for _ in range(num_runs)]
            times = sorted(NUM_AFTER + 1 if one is None else one for one in found)
            quantiles = (times[num_runs // 2], times[num_runs * 9 // 10])
            shown = " | ".join("-" if one > NUM_AFTER else str(one) for one in quantiles)
            share = sum(one is not None for one in found) / num_runs
            print(f"| {lost} | {num_good:,} | {100 * share:.1f}% | {shown} |", flush=True)


if __name__ == "__main__":
    main()
