"""`semspec bench` with the strategies of this folder, which run in one process.

python -m studies.routing run --task demo --limit 200 --strategies in-process/target,in-process/confspec:threshold=0.8
"""

import sys
from typing import cast

from semspec.bench import cli
from semspec.bench.strategies import STRATEGIES
from studies.routing import confspec, glimp_router

if __name__ == "__main__":
    cast(dict[str, object], STRATEGIES).update(
        {"confspec": confspec.strategy, "glimp-router": glimp_router.strategy}
    )
    cli.main(sys.argv[1:])
