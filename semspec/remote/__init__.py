"""Segments from a server that speaks TGI's or OpenAI's API, while states come from the engine here."""
