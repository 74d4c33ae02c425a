"""Strategies of other authors that route steps between draft and target."""
