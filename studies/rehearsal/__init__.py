"""Rehearsals of the whole stack at the shapes, depths and tasks of the pairs that it is made for, on a CPU."""
