"""Rungs: comparisons of one kind of evidence each, in order of computation."""
