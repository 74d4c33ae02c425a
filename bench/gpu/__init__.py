"""GPU benchmark at the paper's model sizes with random weights: speeds and their bounds, whole rounds, parity."""
