"""Rungs of the evidence: pure functions that find mismatches."""
