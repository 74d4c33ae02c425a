"""The report of runs: tables, charts, and published results next to them."""
