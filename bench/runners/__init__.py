"""Runners answer questions: the gateway, the loop in this process, and peers."""
