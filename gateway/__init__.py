"""The REST face of semspec: OpenAI's API over draft, target and verifier, with contexts and traces kept in Redis."""
