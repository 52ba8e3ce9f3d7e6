"""`plumbline store site SUITE`: write the pages over all rounds again, and serve them to a browser of this machine.

Each round writes them too: `site/index.html` of the central store lists all suites. With --serve they open from any
store, by this command's own credentials: at `report_url`, if that is an address of this machine, where the links of
alerts lead, else at an address that nobody can guess.
"""

from __future__ import annotations

import argparse
import json
import secrets
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from plumbline.cli.nights import open_central
from plumbline.cli.options import say
from plumbline.data.stores import ObjectMissingError, read_bytes
from plumbline.night.central import CentralStore
from plumbline.night.rounds.reporting import link_to
from plumbline.night.rounds.site import INDEX, list_reports, with_neighbours, write_site
from plumbline.schema.errors import ConfigurationError, ExitCode, PlumblineError
from plumbline.schema.suite import read_suite

_TYPES = {"html": "text/html; charset=utf-8", "json": "application/json"}
_OWN_NAMES = ("127.0.0.1", "localhost")
_PUBLIC = ("site", "rounds", "records")
"""Folders of the central store that may be served, as by `report_url`; secrets are elsewhere."""


def add(commands: Any) -> None:
    """Add the command `store site`."""
    parser = commands.add_parser("site", help="write or serve the pages over all rounds", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument("--serve", action="store_true", help="serve the pages on this machine until Ctrl-C")
    parser.add_argument(
        "--port", type=int, default=0, help="with --serve: the port (default: report_url's, or a free one)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the suite's pages, print their address, and serve them on request."""
    suite = read_suite(args.suite)
    central = open_central(suite.store)
    key = write_site(central, suite)
    if not args.serve:
        link = link_to(central, key, suite.report_url)
        if link.note and not link.url.startswith("/"):
            say(f"plumbline: only this page opens: {link.note}; --serve opens all", to_stderr=True)
        print(json.dumps({"suite": suite.name, "site": link.url}) if args.json else link.url)
        return int(ExitCode.PASS)
    with page_server(central, suite.report_url, args.port) as server:
        url = f"{server.url}/{quote(key)}"
        print(json.dumps({"suite": suite.name, "site": url}) if args.json else f"{url} (until Ctrl-C)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    return int(ExitCode.PASS)


def page_server(central: CentralStore, report_url: str, port: int) -> PageServer:
    """Return a server for the pages, by default at a local `report_url`."""
    parts = urlsplit(report_url)
    is_here = parts.scheme == "http" and parts.hostname in _OWN_NAMES and not port
    try:
        if is_here:
            return PageServer(central, parts.port or 80, unquote(parts.path).strip("/"))
        return PageServer(central, port)
    except (OSError, OverflowError) as error:
        key = report_url if is_here else str(port)
        hint = "end what listens there, or name a different --port" if is_here else "leave it out"
        raise ConfigurationError(f"{error}", where="report_url" if is_here else "--port", key=key, hint=hint) from error


class PageServer(ThreadingHTTPServer):
    """HTTP server for the store's pages on localhost, below a secret path."""

    def __init__(self, central: CentralStore, port: int = 0, root: str | None = None) -> None:
        self.central = central
        self.root = secrets.token_urlsafe(16) if root is None else root
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Return the URL of the store's root."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.root}".rstrip("/")

    def page(self, path: str) -> tuple[str, bytes] | None:
        """Return type and content of a public page, or `None`."""
        wanted, root = unquote(urlsplit(path).path).lstrip("/"), f"{self.root}/".lstrip("/")
        key = wanted[len(root) :]
        folder, _, name = key.partition("/")
        kind = _TYPES.get(key.rpartition(".")[2])
        is_below = secrets.compare_digest(wanted[: len(root)].encode(), root.encode())
        if not is_below or folder not in _PUBLIC or kind is None:
            return None
        try:
            data = read_bytes(self.central.store, key)
        except ObjectMissingError:
            return None
        suite, _, rest = name.partition("/")
        if folder == "rounds" and rest.endswith("/report.html"):
            order = list_reports(self.central, suite)
            data = with_neighbours(data.decode(), suite, order, rest.partition("/")[0]).encode()
        return kind, data


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        """Respond with a page of the store."""
        try:
            # A stranger's page may have a name of its own that leads here: its scripts get nothing.
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
            page = self.server.page(self.path) if name in _OWN_NAMES else None
        except (PlumblineError, ValueError) as error:
            self.send_error(HTTPStatus.BAD_GATEWAY, type(error).__name__)
            return
        if page is None and name in _OWN_NAMES and unquote(self.path).strip("/") == self.server.root:
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", f"{self.server.url}/{INDEX}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if page is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, data = page
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        """Respond with the headers of a page."""
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Suppress the request log."""
