"""HTTP: bodies in, answers out, in the words of the APIs served."""
