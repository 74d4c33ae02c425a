"""SemanticSpec as a serving system: accept a draft model's reasoning by its meaning."""

__version__ = "0.2.0"
