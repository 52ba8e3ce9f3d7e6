"""Process with Google's credentials from its environment: `google_child.py URL [KEY]`.

google-auth reads the metadata server's address once, when it is imported.
"""

from __future__ import annotations

import json
import sys

from plumbline.data.stores import RetryPolicy, open_store, read_bytes
from plumbline.schema.errors import PlumblineError


def main(url: str, key: str = "") -> None:
    """Write, replace and read an object, or only read `key`; print the result or the error."""
    store = open_store(url, policy=RetryPolicy(attempts=3, first_seconds=0.01))
    try:
        if not key:
            etag = store.create("key", b"bytes").etag
            store.swap("key", b"others", if_match=etag)
        answer = {"read": read_bytes(store, key or "key").decode()}
    except PlumblineError as error:
        answer = {"error": type(error).__name__, "what": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
