"""S3 server of the local stack: moto, restricted to one access key.

`python -m plumbline.local.s3_endpoint PORT`. moto has no login of its own, and each user of a machine reaches its
loopback ports. The key is in each signed request, and another user sees neither requests nor environments.
"""

from __future__ import annotations

import hmac
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from plumbline.local.services import S3_KEY
from plumbline.schema.variables import variable

_KEY = re.compile(r"Credential=([A-Za-z0-9]+)")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def guarded(application: Application, key: str) -> Application:
    """Restrict a WSGI `application` to requests with this access key."""

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = _KEY.search(f"{environ.get('HTTP_AUTHORIZATION', '')} {environ.get('QUERY_STRING', '')}")
        if given is None or not hmac.compare_digest(given[1], key):
            start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return []
        return application(environ, start_response)

    return respond


def main() -> None:
    """Serve requests until SIGTERM."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    application = guarded(DomainDispatcherApplication(create_backend_app), variable(S3_KEY))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main()
