"""The tables of the parts of `retrieval`, from a made-up run."""

import re

from semspec.training.report.document import Code, Table
from studies.retrieval.__main__ import blocks
from tests.bench.made_up import FEW, made_up_run


def test_parts_and_gate_of_a_run_have_a_table_each() -> None:
    own = list(blocks(made_up_run()))
    parts, grid = (block for block in own if isinstance(block, Table))
    assert parts.rows[0][3] == "-" and all(re.fullmatch(r"[+-]\d\.\d{3} ± \d\.\d{3}", row[3]) for row in parts.rows[1:])
    assert [row[:2] for row in parts.rows] == [
        ("all parts, exact", "retrieval"),
        ("static part only", "retrieval:retrieval_source=datastore"),
        ("dynamic part only: prompt look-up", "retrieval:retrieval_source=context"),
        ("soft gate", "retrieval:gate=soft"),
    ]
    cells = [(row[0], *cell) for row in grid.rows for cell in zip(grid.header, row, strict=True)]
    filled = [(entropy, header) for entropy, header, cell in cells if "/" in cell]
    assert filled == [("0.1", "gate_top_k 5")]
    [command] = (line for block in own if isinstance(block, Code) for line in block.lines)
    tree = "retrieval:retrieval_tokens=32:retrieval_tree=on"
    assert f"target,retrieval:retrieval_source=ngrams,{tree},retrieval:gate=soft:gate_entropy=0.02:" in command
    assert "gate_entropy=0.1:gate_top_k=5" not in command
    assert not list(blocks(made_up_run(labels=FEW)))
