"""Rungs of the evidence ladder: pure functions that find mismatches."""
