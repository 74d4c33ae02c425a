"""Load tests of the stack: overload and soak."""
