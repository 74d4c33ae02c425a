"""The gateway's routes, by what they are for."""
