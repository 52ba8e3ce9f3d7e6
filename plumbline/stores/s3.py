"""Amazon S3 and stores that speak its protocol, through plain boto3.

Credentials, region and endpoint come from boto3's own chain (`AWS_*` variables, profile, instance or workload
identity); retries are off, since `plumbline.stores.retry` stands above.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plumbline.errors import AccessError, ConfigurationError, PlumblineError
from plumbline.stores.base import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from plumbline.stores.body import HttpBody, body_of, range_of, retry_after
from plumbline.stores.keys import checked_key, joined, plain_etag, quoted_etag

__all__ = ["S3Store"]

_PART_BYTES = 32 << 20
_MISSING_CODES = {"404", "NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"}
_ACCESS_CODES = {
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "TokenRefreshRequired", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
}  # fmt: skip
_PASSING_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "BadDigest"}
_CREDENTIALS_MEND = "look at the credentials of this environment: variables, profile or identity"


class S3Store:
    """One bucket, from a prefix down."""

    multipart_bytes = 64 << 20

    def __init__(self, url: str, bucket: str, prefix: str, connect_seconds: float, read_seconds: float) -> None:
        self.url = url
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._made: Any = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self, **overrides: Any) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=self._timeouts[0],
            read_timeout=self._timeouts[1],
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=64,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **overrides.pop("config", {}),
        )
        try:
            return boto3.session.Session().client("s3", config=config, **overrides)
        except (BotoCoreError, ValueError) as error:
            what = f"the S3 client cannot be made: {type(error).__name__}"
            raise ConfigurationError(what, where=self.url, mend="look at AWS_* and the profile") from error

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        name = {"Key": joined(self._prefix, key)} if key else {}
        try:
            return getattr(self._client, operation)(Bucket=self._bucket, **name, **arguments)
        except ClientError as error:
            raise self._refused(error.response, key) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise self._broken(error) from error

    def _refused(self, response: Mapping[str, Any], key: str) -> PlumblineError:
        code = str(response.get("Error", {}).get("Code", ""))
        meta = response.get("ResponseMetadata", {})
        status = int(meta.get("HTTPStatusCode", 0))
        if status == 412 or code == "PreconditionFailed":
            return PreconditionFailedError("the object has changed", where=self.url, key=key)
        if code in _MISSING_CODES or status == 404:
            bucket = not key or code == "NoSuchBucket"
            return ObjectMissingError("no such bucket" if bucket else "no such object", where=self.url, key=key)
        if code in _ACCESS_CODES or status in (401, 403):
            return AccessError(f"refused: HTTP {status} {code}", where=self.url, key=key, mend=_CREDENTIALS_MEND)
        if status >= 500 or status == 429 or code in _PASSING_CODES:
            headers = meta.get("HTTPHeaders", {})
            wait = retry_after(headers)
            return StoreUnavailableError(f"HTTP {status} {code}", where=self.url, retry_after_seconds=wait)
        mend = "look at the bucket's region and the endpoint" if 300 <= status < 400 else ""
        return ConfigurationError(f"HTTP {status} {code}", where=self.url, key=key, mend=mend)

    def _broken(self, error: Exception) -> PlumblineError:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        name = type(error).__name__
        credentials = (
            exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError, exceptions.SSOError,
        )  # fmt: skip
        if isinstance(error, credentials):
            return AccessError(f"no usable credentials: {name}", where=self.url, mend=_CREDENTIALS_MEND)
        passing = (
            exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError,
        )  # fmt: skip
        if isinstance(error, passing):
            return StoreUnavailableError(f"no answer: {name}", where=self.url)
        return ConfigurationError(f"the S3 client refuses: {name}", where=self.url)

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[HttpBody]:
        """Read from `offset`."""
        wanted = range_of(offset, length)
        arguments: dict[str, Any] = {"Range": wanted} if wanted else {}
        if if_match is not None:
            arguments["IfMatch"] = quoted_etag(if_match)
        answer = self._call("get_object", checked_key(key, self.url), **arguments)
        meta, body = answer["ResponseMetadata"], answer["Body"]
        raw = body._raw_stream  # noqa: SLF001 - StreamingBody offers no read of what has arrived
        with body_of(
            key, int(meta["HTTPStatusCode"]), meta["HTTPHeaders"], raw, offset=offset, length=length
        ) as reader:
            yield reader

    def stat(self, key: str) -> ObjectInfo:
        """Size and etag."""
        answer = self._call("head_object", checked_key(key, self.url))
        return ObjectInfo(key, int(answer["ContentLength"]), plain_etag(answer["ETag"]))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`."""
        start = f"{self._prefix}/" if self._prefix else ""
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", "", Prefix=start + prefix, **more)
            for entry in page.get("Contents", []):
                yield ObjectInfo(entry["Key"][len(start) :], int(entry["Size"]), plain_etag(entry["ETag"]))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object; above `multipart_bytes` in parts, which appear together or not at all."""
        checked_key(key, self.url)
        try:
            if not isinstance(data, Path):
                return self._put(key, data, IfNoneMatch="*")
            size = data.stat().st_size
            if size > self.multipart_bytes:
                return self._create_in_parts(key, data, size)
            with data.open("rb") as file:
                return self._put(key, file, size=size, IfNoneMatch="*")
        except PreconditionFailedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def _put(self, key: str, body: Any, size: int | None = None, **arguments: Any) -> ObjectInfo:
        answer = self._call("put_object", key, Body=body, **arguments)
        return ObjectInfo(key, len(body) if size is None else size, plain_etag(answer["ETag"]))

    def _create_in_parts(self, key: str, path: Path, size: int) -> ObjectInfo:
        upload = self._call("create_multipart_upload", key)["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            with path.open("rb") as file:
                while chunk := file.read(max(_PART_BYTES, -(-size // 10_000))):
                    number = len(parts) + 1
                    part = self._call("upload_part", key, UploadId=upload, PartNumber=number, Body=chunk)
                    parts.append({"ETag": part["ETag"], "PartNumber": number})
            listing = {"Parts": parts}
            answer = self._call(
                "complete_multipart_upload", key, UploadId=upload, MultipartUpload=listing, IfNoneMatch="*"
            )
        except PlumblineError:
            self._abort(key, upload)
            raise
        return ObjectInfo(key, size, plain_etag(answer["ETag"]))

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._call("abort_multipart_upload", key, UploadId=upload)
        except PlumblineError:
            # The first error is the one to tell; buckets expire what is left of an upload.
            return

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match`."""
        checked_key(key, self.url)
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted_etag(if_match)}
        try:
            return self._put(key, bytes(data), **condition)
        except ObjectMissingError as error:
            if if_match is None:
                raise ObjectMissingError("no such bucket", where=self.url, mend="make it first") from error
            raise PreconditionFailedError("the object is gone", where=self.url, key=key) from error
