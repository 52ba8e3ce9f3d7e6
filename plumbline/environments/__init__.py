"""Environment of one training: locks, interpreters, packages, trainer start."""
