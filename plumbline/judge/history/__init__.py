"""Decision engine: regressions in a platform's nightly metrics.

Detectors, limits and the tests of experiments. Pure.
"""
