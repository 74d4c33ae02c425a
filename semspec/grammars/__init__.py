"""Checks of clients' grammars: limits on their text, and a trial compilation in a process that may be killed."""
