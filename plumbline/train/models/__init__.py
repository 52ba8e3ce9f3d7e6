"""The model that is trained: its family, and dropout that is equal on all machines."""
