"""Reading tensors while they are trained on: calls, taps, trail, state, and the books that keep them."""
