"""The rungs of the evidence ladder, one module each: pure functions from a pair of records to the breaks they see."""
