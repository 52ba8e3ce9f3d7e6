"""Local stack: all servers of a round as child processes.

All state is in one folder. The package only starts processes: it imports neither Prefect nor a cloud's SDK.
"""

from plumbline.localstack.stack import Stack, is_local

__all__ = ["Stack", "is_local"]
