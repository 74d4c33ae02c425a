"""Grammars of clients: what is counted before they are compiled, and the processes that compile them first."""
