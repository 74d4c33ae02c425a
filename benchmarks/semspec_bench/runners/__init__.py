"""Runners, which answer questions: by the gateway, the decoding loop in this process, or peers."""
