"""Building blocks of reports, for the probes and the bench: numbers with errors, figures, and documents."""
