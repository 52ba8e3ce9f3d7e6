"""Google Cloud Storage server after its documentation, with refusals.

The JSON API (objects, media and resumable uploads, listing), signed URLs, the token endpoint and the metadata server.
It refuses what Google refuses: `x-amz-*` beside `x-goog-*` headers, tokens that it did not issue, generations that are
not the object's, uploads whose MD5 differs, chunks of a length or an offset that a resumable session does not allow.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.http_server import Handler, Server

_PAGE = 3
_GRAIN = 256 << 10
EMAIL = "worker@project.iam.gserviceaccount.com"


@dataclass
class Session:
    """One resumable upload."""

    name: str
    size: int
    generation: str | None
    md5: str
    content_type: str
    data: bytearray = field(default_factory=bytearray)
    done: dict[str, Any] | None = None


class GoogleServer:
    """Objects of one bucket, each with its generation."""

    def __init__(self, bucket: str = "bucket") -> None:
        self.bucket = bucket
        self.objects: dict[str, tuple[int, bytes, str]] = {}
        self.sessions: dict[str, Session] = {}
        self.lock = threading.Lock()
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.authorizations: list[str] = []
        self.tokens: list[str] = []
        self.received = 0
        """Bytes of uploads in resumable sessions."""
        self.refusals: list[int] = []
        """Statuses that the metadata server gives before its first token."""
        self.broken_chunks: list[int] = []
        """For each next chunk: the bytes kept of it before a 503; negative: kept, and answered 308."""
        self.is_public = False
        """Whether requests without a token are answered."""
        self.session_host = ""
        """Another host in the address of an upload session."""
        self.grants: list[tuple[frozenset[str], str]] | None = None
        """Permissions with the prefix of the objects' names; `None`: every permission."""
        self._next_generation = 1_700_000_000_000_000
        self._http = _Server(_Handler)
        self._http.owner, self.url = self, self._http.url

    def account_file(self, folder: Path) -> Path:
        """Write the key file of a service account of this server."""
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        account = {
            "type": "service_account", "project_id": "project", "private_key_id": "1", "private_key": pem.decode(),
            "client_email": EMAIL, "client_id": "1", "token_uri": f"{self.url}/token",
        }  # fmt: skip
        path = folder / "account.json"
        path.write_text(json.dumps(account))
        return path

    def issue_token(self) -> dict[str, Any]:
        """Return a new access token, as of the token endpoint."""
        self.tokens.append(f"token-{len(self.tokens) + 1}")
        return {"access_token": self.tokens[-1], "expires_in": 3600, "token_type": "Bearer"}

    def put(self, name: str, data: bytes, generation: str | None, content_type: str) -> dict[str, Any] | None:
        """Write an object of this generation (0: absent; None: any); return None on mismatch."""
        with self.lock:
            current = self.objects[name][0] if name in self.objects else 0
            if generation is not None and int(generation) != current:
                return None
            self._next_generation += 1
            self.objects[name] = (self._next_generation, data, content_type)
        return self.describe(name)

    def is_granted(self, permission: str, name: str) -> bool:
        """Return whether a grant has `storage.objects.{permission}` for this object."""
        whole = f"storage.objects.{permission}"
        return self.grants is None or any(
            whole in permissions and name.startswith(prefix) for permissions, prefix in self.grants
        )

    def lacks(self, name: str) -> str:
        """Return the permission that a write of this object lacks: replacing needs `delete`, too."""
        needed = ("create", "delete") if name in self.objects else ("create",)
        return next((permission for permission in needed if not self.is_granted(permission, name)), "")

    def describe(self, name: str) -> dict[str, Any]:
        """Return the object resource."""
        generation, data, content_type = self.objects[name]
        md5 = base64.b64encode(hashlib.md5(data).digest()).decode()  # noqa: S324
        return {
            "kind": "storage#object", "name": name, "bucket": self.bucket, "generation": str(generation),
            "size": str(len(data)), "md5Hash": md5, "etag": f"C{generation}=", "contentType": content_type,
        }  # fmt: skip

    def __enter__(self) -> Self:
        self._http.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop()


class _Server(Server):
    request_queue_size = 64
    owner: GoogleServer


class _Handler(Handler):
    disable_nagle_algorithm = True
    server: _Server
    timeout = 30

    def _json(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.reply(status, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _refuse(self, status: int, reason: str) -> None:
        errors = [{"domain": "global", "reason": reason, "message": reason}]
        self._json({"error": {"code": status, "message": reason, "errors": errors}}, status)

    def answer(self) -> None:
        owner, body = self.server.owner, self.body()
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        names = [name.lower() for name in self.headers]
        if parts.path.startswith("/computeMetadata/") or (parts.path == "/" and "metadata-flavor" in names):
            return self._metadata(parts.path)
        if parts.path == "/token":
            return self._token(body)
        amazon = any(name.startswith("x-amz-") for name in names) or "AWS4" in self.headers.get("Authorization", "")
        if amazon and any(name.startswith("x-goog-") for name in names):
            return self.reply(400, b"<Error><Code>ExcessHeaderValues</Code></Error>")
        if "X-Goog-Signature" in query:
            return self._signed(parts.path, parts.query, query)
        authorization = self.headers.get("Authorization", "")
        owner.authorizations.append(authorization)
        is_known = authorization.removeprefix("Bearer ") in owner.tokens if authorization else owner.is_public
        if not is_known:
            return self._refuse(401, "authError" if authorization else "required")
        return self._api(parts.path, query, body)

    def _api(self, path: str, query: dict[str, str], body: bytes) -> None:
        bucket = self.server.owner.bucket
        listing, upload = f"/storage/v1/b/{bucket}/o", f"/upload/storage/v1/b/{bucket}/o"
        if path == upload:
            return self._upload(query, body)
        if path == listing and self.command == "GET":
            return self._list(query)
        if path.startswith(listing + "/"):
            return self._object(unquote(path[len(listing) + 1 :]), query)
        return self._refuse(404, "notFound")

    def _object(self, name: str, query: dict[str, str]) -> None:  # noqa: PLR0911 - each refusal of the protocol
        owner = self.server.owner
        if not owner.is_granted("delete" if self.command == "DELETE" else "get", name):
            return self._refuse(403, "forbidden")
        result = owner.objects.get(name)
        if result is None:
            return self._refuse(404, "notFound")
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and not wanted.isdecimal():
            return self._refuse(400, "invalid")
        if wanted is not None and int(wanted) != result[0]:
            return self._refuse(412, "conditionNotMet")
        if self.command == "DELETE":
            del owner.objects[name]
            return self.reply(204)
        if query.get("alt") == "media":
            return self._give(result)
        return self._json(owner.describe(name))

    def _give(self, found: tuple[int, bytes, str]) -> None:
        generation, data, content_type = found
        headers = {"x-goog-generation": str(generation), "ETag": f"C{generation}=", "Content-Type": content_type}
        asked = self.headers.get("Range", "")
        if not asked:
            return self.reply(200, data, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        if int(first) >= len(data):
            return self._refuse(416, "requestedRangeNotSatisfiable")
        part = data[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        return self.reply(206, part, headers)

    def _list(self, query: dict[str, str]) -> None:
        owner = self.server.owner
        if not owner.is_granted("list", ""):
            self._refuse(403, "forbidden")
            return
        after = base64.b64decode(query.get("pageToken", "")).decode()
        names = sorted(name for name in owner.objects if name.startswith(query.get("prefix", "")) and name > after)
        page: dict[str, Any] = {"kind": "storage#objects"}
        if names:
            page["items"] = [owner.describe(name) for name in names[:_PAGE]]
        if names[_PAGE:]:
            page["nextPageToken"] = base64.b64encode(names[_PAGE - 1].encode()).decode()
        self._json(page)

    def _upload(self, query: dict[str, str], body: bytes) -> None:
        kind = query.get("uploadType")
        if self.command == "PUT" and kind == "resumable" and "upload_id" in query:
            return self._chunk(query["upload_id"], body)
        generation = query.get("ifGenerationMatch")
        if self.command != "POST" or (generation is not None and not generation.isdecimal()):
            return self._refuse(400, "invalid")
        if kind == "resumable":
            return self._begin(json.loads(body), generation)
        if kind == "multipart":
            output, data = self._related(body)
            return self._finish(output, data, generation)
        return self._refuse(400, "invalid")

    def _related(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        boundary = self.headers["Content-Type"].partition("boundary=")[2].encode()
        _, first, second, _ = body.split(b"--" + boundary, 3)
        output = json.loads(first.partition(b"\r\n\r\n")[2])
        return output, second.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")

    def _finish(self, told: dict[str, Any], data: bytes, generation: str | None) -> None:
        if told.get("md5Hash") not in (None, base64.b64encode(hashlib.md5(data).digest()).decode()):  # noqa: S324
            return self._refuse(400, "invalid")
        if self.server.owner.lacks(told["name"]):
            return self._refuse(403, "forbidden")
        made = self.server.owner.put(told["name"], data, generation, told["contentType"])
        return self._refuse(412, "conditionNotMet") if made is None else self._json(made)

    def _begin(self, told: dict[str, Any], generation: str | None) -> None:
        owner = self.server.owner
        if owner.lacks(told["name"]):
            return self._refuse(403, "forbidden")
        session = secrets.token_hex(8)
        size = int(self.headers["X-Upload-Content-Length"])
        owner.sessions[session] = Session(told["name"], size, generation, told["md5Hash"], told["contentType"])
        root = owner.session_host or owner.url
        location = f"{root}/upload/storage/v1/b/{owner.bucket}/o?uploadType=resumable&upload_id={session}"
        return self.reply(200, headers={"Location": location})

    def _chunk(self, name: str, body: bytes) -> None:  # noqa: PLR0911 - each refusal of the protocol
        owner = self.server.owner
        session = owner.sessions.get(name)
        if session is None:
            return self._refuse(404, "notFound")
        if session.done is not None:
            return self._json(session.done)
        span, _, total = self.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if int(total) != session.size:
            return self._refuse(400, "invalid")
        if span == "*":
            return self._incomplete(session)
        first, _, last = span.partition("-")
        whole = int(last) + 1 == session.size
        wrong = int(first) != len(session.data) or int(last) - int(first) + 1 != len(body)
        if wrong or (len(body) % _GRAIN and not whole):
            return self._refuse(400, "invalid")
        if owner.broken_chunks:
            kept = owner.broken_chunks.pop(0)
            session.data += body[: abs(kept)]
            owner.received += len(body)
            return self._refuse(503, "backendError") if kept >= 0 else self._incomplete(session)
        owner.received += len(body)
        session.data += body
        if not whole:
            return self._incomplete(session)
        output = {"name": session.name, "md5Hash": session.md5, "contentType": session.content_type}
        if base64.b64encode(hashlib.md5(session.data).digest()).decode() != session.md5:  # noqa: S324
            return self._refuse(400, "invalid")
        session.done = owner.put(output["name"], bytes(session.data), session.generation, session.content_type)
        return self._refuse(412, "conditionNotMet") if session.done is None else self._json(session.done)

    def _incomplete(self, session: Session) -> None:
        kept = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
        self.reply(308, headers=kept)

    def _metadata(self, path: str) -> None:
        owner, google = self.server.owner, {"Metadata-Flavor": "Google"}
        if self.headers["Metadata-Flavor"] != "Google":
            return self.reply(403)
        if path == "/":
            return self.reply(200, b"computeMetadata/", google)
        if owner.refusals:
            return self.reply(owner.refusals.pop(0), headers=google)
        if path.endswith("/token"):
            return self._json(owner.issue_token(), headers=google)
        if path.endswith("/service-accounts/default/"):
            return self._json({"email": EMAIL, "aliases": ["default"], "scopes": []}, headers=google)
        return self.reply(404, headers=google)

    def _token(self, body: bytes) -> None:
        """Exchange a JWT that the service account's key has signed."""
        form = parse_qs(body.decode())
        head, claims, signature = form["assertion"][0].split(".")
        if not self._is_ours(f"{head}.{claims}".encode(), _unpadded(signature)):
            return self._json({"error": "invalid_grant"}, 400)
        output = json.loads(_unpadded(claims))
        right = output["iss"] == EMAIL and output["exp"] > time.time() and "devstorage" in output["scope"]
        return self._json(self.server.owner.issue_token()) if right else self._json({"error": "invalid_grant"}, 400)

    def _is_ours(self, message: bytes, signature: bytes) -> bool:
        public = self.server.owner.key.public_key()
        try:
            public.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True

    def _signed(self, path: str, raw: str, query: dict[str, str]) -> None:
        """Check a signed URL, version 4."""
        signed = "&".join(sorted(part for part in raw.split("&") if not part.startswith("X-Goog-Signature=")))
        request = f"GET\n{path}\n{signed}\nhost:{self.headers['Host']}\n\nhost\nUNSIGNED-PAYLOAD"
        scope = query["X-Goog-Credential"].partition("/")[2]
        stamp = query["X-Goog-Date"]
        message = f"GOOG4-RSA-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        if not self._is_ours(message.encode(), bytes.fromhex(query["X-Goog-Signature"])):
            return self.reply(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        begin = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        seconds = int(query["X-Goog-Expires"])
        if seconds > 604800 or not begin - 900 <= time.time() <= begin + seconds:
            return self.reply(400, b"<Error><Code>ExpiredToken</Code></Error>")
        bucket = f"/{quote(self.server.owner.bucket)}/"
        result = self.server.owner.objects.get(unquote(path.removeprefix(bucket))) if path.startswith(bucket) else None
        return self._give(result) if result else self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
