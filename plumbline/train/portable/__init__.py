"""Windows: steps of a training in fp64, whose numbers are equal on every device."""
