"""Load tests of the stack."""
