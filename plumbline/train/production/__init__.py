"""Production leg: the first steps of a training at the settings of `speed`, judged module by module."""
