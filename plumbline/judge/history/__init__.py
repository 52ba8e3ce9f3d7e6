"""Decision engine over a platform's nights.

Detectors, limits and the tests of experiments. Pure.
"""
