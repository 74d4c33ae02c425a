"""What outlives a request, in Redis."""
