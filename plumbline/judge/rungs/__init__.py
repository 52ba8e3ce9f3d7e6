"""Rungs of the evidence ladder: pure functions from a pair of records to mismatches."""
