"""The local stack: every server that a round needs, as children of one command, all state under one folder.

It starts processes and nothing else: neither Prefect nor a cloud's SDK is imported here.
"""

from plumbline.localstack.stack import Stack, is_local

__all__ = ["Stack", "is_local"]
