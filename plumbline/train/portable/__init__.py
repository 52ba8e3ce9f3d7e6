"""Portable leg: training with bits independent of order, threads, kernels and device."""
