"""Experiments of a round: replays of recorded steps, and the A/B of installed packages."""
