"""Are the probes good enough to serve, and by which rule?"""
