"""The stack under more requests than it has room for, and under very many."""
