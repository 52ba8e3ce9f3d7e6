"""Nightly rounds of a suite: plan, run, judge, publish, and stored state."""
