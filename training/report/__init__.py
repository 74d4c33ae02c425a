"""Reports: numbers with their errors, figures, and documents of blocks, for the probes and the bench alike."""
