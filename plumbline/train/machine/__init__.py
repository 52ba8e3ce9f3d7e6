"""What the machine is and how it computes: clock, fingerprint, formats, native operations, samples of its load."""
