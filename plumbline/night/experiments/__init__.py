"""Experiments of a round: replays with restored values, and package A/B tests."""
