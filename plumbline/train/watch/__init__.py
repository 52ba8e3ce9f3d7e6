"""Reading tensors while they are trained on: calls, taps, the log of steps, state, and the books that keep them."""
