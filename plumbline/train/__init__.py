"""The trainer: one training in its own process, spec in, record out. Only here do torch and transformers load."""
