"""One round of a suite, from its plan to its published verdict, and what is kept between nights."""
