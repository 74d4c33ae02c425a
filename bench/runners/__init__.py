"""Roads from a question to an answer: the gateway, the loop in this process, and peers."""
