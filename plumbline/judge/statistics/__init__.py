"""Statistics without a state: distributions, samples, paired runs, equivalence, changes of level. Pure."""
