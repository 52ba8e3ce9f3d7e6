"""Comparisons of one kind of evidence ("rung") each, in computation order."""
