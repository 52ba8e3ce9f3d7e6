"""Failure drills: real rounds on a stock Prefect server and stock workers, broken on purpose."""
