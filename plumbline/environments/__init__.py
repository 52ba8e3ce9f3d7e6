"""Environment of one training: locks, interpreters, packages, and the start of its process."""
