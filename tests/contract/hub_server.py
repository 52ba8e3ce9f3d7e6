"""HTTP server with the part of the Hugging Face Hub that `datasets` needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from tests.http_server import Handler, serving

_COMMIT = "a" * 40


class _Hub(Handler):
    repository = ""
    kind = "datasets"
    files: dict[str, bytes] = {}
    files_host = ""
    """Address to which requests of files are redirected."""

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def _tree(self, folder: str, whole: bool) -> list[dict[str, object]]:
        """Return the entries of a folder, in the Hub's format."""
        below = {name: data for name, data in self.files.items() if not folder or name.startswith(f"{folder}/")}
        result: dict[str, dict[str, object]] = {}
        for name, data in below.items():
            rest = name.removeprefix(f"{folder}/")
            if "/" in rest:
                place = name[: len(name) - len(rest)] + rest.partition("/")[0]
                result[place] = {"type": "directory", "path": place, "size": 0, "oid": "0" * 40}
            if whole or "/" not in rest:
                oid = hashlib.sha256(data).hexdigest()
                result[name] = {"type": "file", "path": name, "size": len(data), "oid": oid}
        return list(result.values())

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        about, resolve = f"/api/{self.kind}/{self.repository}", f"/{self.kind}/{self.repository}/resolve/"
        if self.kind == "models":
            resolve = f"/{self.repository}/resolve/"
        if path in (about, *(f"{about}/revision/{name}" for name in (_COMMIT, "main", "v1"))):
            siblings = [{"rfilename": name} for name in self.files]
            described = {"id": self.repository, "sha": _COMMIT, "private": False, "tags": [], "siblings": siblings}
            self._answer(200, json.dumps(described).encode())
        elif path.startswith(f"{about}/tree/{_COMMIT}"):
            whole = "recursive=true" in urlsplit(self.path).query.lower()
            self._answer(
                200, json.dumps(self._tree(path.removeprefix(f"{about}/tree/{_COMMIT}").strip("/"), whole)).encode()
            )
        elif path.startswith(resolve) and (name := path.removeprefix(resolve).partition("/")[2]) in self.files:
            data = self.files[name]
            if self.files_host:
                size, etag = str(len(data)), f'"{hashlib.sha256(data).hexdigest()}"'
                place = {"Location": f"{self.files_host}/{name}", "X_Linked_Size": size, "X_Linked_ETag": etag}
                return self._answer(302, b"", ETag=etag, X_Repo_Commit=_COMMIT, **place)
            self._answer(200, data, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=_COMMIT)
        else:
            known = path.startswith((about, resolve))
            missing = "RevisionNotFound" if path.startswith(f"{about}/revision/") else "EntryNotFound"
            self._answer(404, b"{}", X_Error_Code=missing if known else "RepoNotFound")
        return None


@contextmanager
def serve_hub(repository: str, files: dict[str, bytes], kind: str = "datasets", files_host: str = "") -> Iterator[str]:
    """Serve a hub with one dataset, or with `models`; return its URL."""
    attributes = {"repository": repository, "files": files, "kind": kind, "files_host": files_host}
    handler = type("Hub", (_Hub,), attributes)
    with serving(handler) as url:
        yield url
