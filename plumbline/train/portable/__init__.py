"""The portable leg: training in arithmetic whose bits do not depend on order, threads, kernels or device."""
