"""Outputs of a round: HTML report, terminal table, JUnit XML, CI summary."""
