"""GPU benchmark of the engine over vLLM at the paper's model sizes, random weights: parity, times and their bounds."""
