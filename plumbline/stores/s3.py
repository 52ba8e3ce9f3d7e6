"""Amazon S3 and stores that speak its protocol, through plain boto3.

Credentials, region and endpoint come from boto3's own chain (`AWS_*` variables, profile, instance or workload
identity); retries are off, since `plumbline.stores.retry` stands above. Every upload carries its MD5, without which a
bucket with Object Lock refuses it. `PLUMBLINE_S3_REQUEST_PAYER=requester` agrees to pay in a requester-pays bucket;
`PLUMBLINE_S3_SSE` (`aws:kms`, with `PLUMBLINE_S3_KMS_KEY_ID`) asks for an encryption that the bucket's policy demands.
"""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from plumbline import __version__
from plumbline.errors import AccessError, ConfigurationError, PlumblineError
from plumbline.stores.base import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from plumbline.stores.body import HttpBody, body_of, range_of, retry_after
from plumbline.stores.direct import DirectReads, is_proxied
from plumbline.stores.keys import checked_key, joined, plain_etag, quoted_etag
from plumbline.stores.s3_signing import signed_headers
from plumbline.stores.upload import Body, content_md5, media_type

__all__ = ["S3Store"]

_PART_BYTES = 32 << 20
_MISSING_CODES = {"404", "NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"}
_ACCESS_CODES = {
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch", "TokenRefreshRequired", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
}  # fmt: skip
_PASSING_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "BadDigest"}
_CREDENTIALS_HINT = "check the credentials of this environment: variables, profile or identity"
_CONDITIONS_HINT = "the service must support conditional writes (If-Match, If-None-Match)"
_MOST_ERROR_BYTES = 64 << 10
_UPLOADS = {"put_object", "create_multipart_upload"}


class _SignedReads:
    """Reads of one bucket, signed here; faster than the SDK for small objects."""

    def __init__(self, pool: DirectReads, host: str, root: str, credentials: Any, region: str) -> None:
        self._pool = pool
        self._host = host
        self._root = root
        self._credentials = credentials
        self._region = region

    def get(self, name: str, headers: Mapping[str, str], *, where: str) -> Any:
        keys = self._credentials.get_frozen_credentials()
        target = self._root + quote(name, safe="/-_.~")
        signed = signed_headers(
            self._host, target, access_key=keys.access_key, secret_key=keys.secret_key, token=keys.token,
            region=self._region, stamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            payer=os.environ.get("PLUMBLINE_S3_REQUEST_PAYER", ""),
        )  # fmt: skip
        # As in the SDK: store operators identify callers by this variable.
        agent = f"plumbline/{__version__} app/{os.environ.get('AWS_SDK_UA_APP_ID', '')}".removesuffix(" app/")
        return self._pool.get(target, {"User-Agent": agent, **headers, **signed}, where=where)


class S3Store:
    """Store of one bucket, below a prefix."""

    multipart_bytes = 64 << 20

    def __init__(self, url: str, bucket: str, prefix: str, *, connect_seconds: float, read_seconds: float) -> None:
        self.url = url
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._made: Any = None
        self._reads: _SignedReads | None = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
            return self._made

    def _make_client(self) -> Any:
        import boto3
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=self._timeouts[0],
            read_timeout=self._timeouts[1],
            signature_version="s3v4",  # boto3 signs links by version 2, which younger regions and KMS refuse
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=64,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        try:
            core = botocore.session.get_session()
            session = boto3.session.Session(botocore_session=core)
            client = session.client("s3", config=config)
            self._reads = self._make_reads(client, session.get_credentials(), core.get_config_variable("ca_bundle"))
        except (BotoCoreError, ValueError) as error:
            text = f"the S3 client cannot be created: {type(error).__name__}"
            raise ConfigurationError(text, where=self.url, hint="check AWS_* and the profile") from error
        return client

    def _make_reads(self, client: Any, credentials: Any, ca_bundle: Any) -> _SignedReads | None:
        """Return signed reads, if the endpoint supports such signatures, else `None`."""
        address = {"Bucket": self._bucket, "Key": "x"}
        template = client.generate_presigned_url("get_object", Params=address).partition("?")[0] if credentials else ""
        # A directory bucket needs its own sessions.
        if not template.endswith("/x") or is_proxied(template) or self._bucket.endswith("--x-s3"):
            return None
        parts = urlsplit(template)
        pool = DirectReads(
            f"{parts.scheme}://{parts.netloc}", connect_seconds=self._timeouts[0], read_seconds=self._timeouts[1],
            ca_bundle=ca_bundle or "",
        )  # fmt: skip
        return _SignedReads(pool, parts.netloc, parts.path[:-1], credentials, client.meta.region_name)

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        name = {"Key": joined(self._prefix, key)} if key else {}
        arguments |= _demanded(operation)
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
            return AccessError(f"refused: HTTP {status} {code}", where=self.url, key=key, hint=_CREDENTIALS_HINT)
        if status == 501 or code == "NotImplemented":
            return ConfigurationError(f"HTTP {status} {code}", where=self.url, key=key, hint=_CONDITIONS_HINT)
        if status >= 500 or status == 429 or code in _PASSING_CODES:
            headers = meta.get("HTTPHeaders", {})
            wait = retry_after(headers)
            return StoreUnavailableError(f"HTTP {status} {code}", where=self.url, retry_after_seconds=wait)
        hint = "check the bucket's region and the endpoint" if 300 <= status < 400 else ""
        return ConfigurationError(f"HTTP {status} {code}", where=self.url, key=key, hint=hint)

    def _broken(self, error: Exception) -> PlumblineError:
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        name = type(error).__name__
        credentials = (
            exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError, exceptions.SSOError,
        )  # fmt: skip
        if isinstance(error, credentials):
            return AccessError(f"no usable credentials: {name}", where=self.url, hint=_CREDENTIALS_HINT)
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
        name = joined(self._prefix, checked_key(key, self.url))
        headers = {"Range": wanted} if (wanted := range_of(offset, length)) else {}
        if if_match is not None:
            headers["If-Match"] = quoted_etag(if_match)
        status, response_headers, raw = self._get(key, name, headers)
        with body_of(key, status, response_headers, raw, offset=offset, length=length) as reader:
            yield reader

    def _get(self, key: str, name: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers and unread body of a GET."""
        from botocore.exceptions import BotoCoreError

        _ = self._client  # makes `_reads`
        if self._reads is not None:
            try:
                raw = self._reads.get(name, headers, where=self.url)
            except BotoCoreError as error:
                raise self._broken(error) from error
            response_headers = {field.lower(): value for field, value in raw.headers.items()}
            if raw.status in (200, 206):
                return raw.status, response_headers, raw
            code = _code(raw)
            # A different region: the SDK finds the right one.
            if raw.status not in (301, 400):
                meta = {"HTTPStatusCode": raw.status, "HTTPHeaders": response_headers}
                raise self._refused({"Error": {"Code": code}, "ResponseMetadata": meta}, key)
        answer = self._call("get_object", key, **{field.replace("-", ""): value for field, value in headers.items()})
        meta = answer["ResponseMetadata"]
        # StreamingBody cannot read only the arrived bytes.
        return int(meta["HTTPStatusCode"]), meta["HTTPHeaders"], answer["Body"]._raw_stream  # noqa: SLF001

    def stat(self, key: str) -> ObjectInfo:
        """Return size and etag."""
        answer = self._call("head_object", checked_key(key, self.url))
        return ObjectInfo(key, int(answer["ContentLength"]), plain_etag(answer["ETag"]))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
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
        """Write a new object atomically; above `multipart_bytes` in parts."""
        checked_key(key, self.url)
        try:
            if not isinstance(data, Path):
                return self._put(key, io.BytesIO(data), len(data), IfNoneMatch="*")
            size = data.stat().st_size
            if size > self.multipart_bytes:
                return self._create_in_parts(key, data, size)
            with data.open("rb") as file:
                return self._put(key, file, size, IfNoneMatch="*")
        except PreconditionFailedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def delete(self, key: str) -> None:
        """Remove an object, if it exists; a versioned bucket keeps its versions."""
        self._call("delete_object", checked_key(key, self.url))

    def presign(self, key: str, seconds: int) -> str:
        """Return a link, valid for `seconds` or until the credentials end."""
        from botocore.exceptions import BotoCoreError

        name = {"Bucket": self._bucket, "Key": joined(self._prefix, checked_key(key, self.url))}
        try:
            return str(self._client.generate_presigned_url("get_object", Params=name, ExpiresIn=seconds))
        except BotoCoreError as error:
            raise self._broken(error) from error

    def _put(self, key: str, body: Body, size: int, **arguments: Any) -> ObjectInfo:
        answer = self._call(
            "put_object", key, Body=body, ContentMD5=content_md5(body), ContentType=media_type(key), **arguments
        )
        return ObjectInfo(key, size, plain_etag(answer["ETag"]))

    def _create_in_parts(self, key: str, path: Path, size: int) -> ObjectInfo:
        upload = self._call("create_multipart_upload", key, ContentType=media_type(key))["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            with path.open("rb") as file:
                while chunk := file.read(max(_PART_BYTES, -(-size // 10_000))):
                    number = len(parts) + 1
                    part = self._call(
                        "upload_part", key, UploadId=upload, PartNumber=number, Body=chunk,
                        ContentMD5=content_md5(io.BytesIO(chunk)),
                    )  # fmt: skip
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
            # Report the first error; buckets expire the rest of an upload.
            return

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match`."""
        checked_key(key, self.url)
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted_etag(if_match)}
        try:
            return self._put(key, io.BytesIO(data), len(data), **condition)
        except ObjectMissingError as error:
            if if_match is None:
                raise ObjectMissingError("no such bucket", where=self.url, hint="create the bucket first") from error
            raise PreconditionFailedError("the object does not exist any more", where=self.url, key=key) from error


def _code(raw: Any) -> str:
    """Return the service's error code from its XML; release the connection."""
    from urllib3.exceptions import HTTPError

    try:
        body = raw.read(_MOST_ERROR_BYTES)
    except (HTTPError, OSError):
        body = b""
    finally:
        raw.close()
    match = re.search(rb"<Code>([A-Za-z0-9.]{1,80})</Code>", body)
    return match[1].decode() if match else ""


def _demanded(operation: str) -> dict[str, str]:
    """Return the request arguments that the environment requires for this bucket."""
    arguments: dict[str, str] = {}
    if payer := os.environ.get("PLUMBLINE_S3_REQUEST_PAYER"):
        arguments["RequestPayer"] = payer
    if operation in _UPLOADS and (encryption := os.environ.get("PLUMBLINE_S3_SSE")):
        arguments["ServerSideEncryption"] = encryption
        if key := os.environ.get("PLUMBLINE_S3_KMS_KEY_ID"):
            arguments["SSEKMSKeyId"] = key
    return arguments
