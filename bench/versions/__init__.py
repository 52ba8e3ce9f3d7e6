"""The trainer in environments with different versions of its libraries."""
