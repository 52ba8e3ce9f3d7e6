"""Amazon S3 and compatible services, through botocore.

botocore is boto3's core; without boto3 a process starts sooner. Credentials, region and endpoint come from its chain
(`AWS_*` variables, profile, instance or workload identity); an environment without credentials sends unsigned requests,
which a public bucket answers. Its retries are off, since `plumbline.data.stores.retry` is above. Every upload carries
its MD5, without which a bucket with Object Lock refuses it. `PLUMBLINE_S3_REQUEST_PAYER=requester` agrees to pay in a
requester-pays bucket; `PLUMBLINE_S3_SSE` (`aws:kms`, with `PLUMBLINE_S3_KMS_KEY_ID`) asks for an encryption that the
bucket's policy demands.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plumbline.data.stores.body import Body, HttpBody, body_of, content_md5, media_type, opened, range_of
from plumbline.data.stores.direct import DirectResponse
from plumbline.data.stores.foreign_errors import cause_of
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    bounded_pages,
    checked_key,
    joined,
    plain_etag,
    quoted_etag,
)
from plumbline.data.stores.s3_api import S3Reads, api_errors, credential_errors, find_credentials, redirected_region
from plumbline.data.stores.service_errors import S3, Answer, no_credentials, response_error
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.store_url import StoreAddress
from plumbline.schema.variables import variable

_PART_BYTES = 32 << 20
_UPLOADS = {"put_object", "create_multipart_upload"}


class S3Store:
    """S3 bucket as a store, below a prefix."""

    multipart_bytes = 64 << 20

    def __init__(self, url: str, bucket: str, prefix: str, *, connect_seconds: float, read_seconds: float) -> None:
        self.url = url
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._made: tuple[Any, S3Reads] | None = None
        self._profile = ""
        self._region: str | None = None
        """The bucket's region, once the service has named a different one than the environment."""

    def _connected(self) -> tuple[Any, S3Reads]:
        """Return the SDK client and signed reads, with unexpired credentials."""
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            made = self._made
        # Apart from the request, so that a refusal of the token service is not taken for the bucket's.
        with credential_errors(self.url, self._profile):
            made[1].renew()
        return made

    def _connect(self) -> tuple[Any, S3Reads]:
        import botocore.session
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        connect, read = self._timeouts
        config = Config(
            connect_timeout=connect,
            read_timeout=read,
            signature_version="s3v4",  # links are signed by version 2 otherwise, which younger regions and KMS refuse
            retries={"mode": "standard", "total_max_attempts": 1},
            max_pool_connections=64,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        session = botocore.session.get_session()
        self._profile = session.profile or ""
        credentials = find_credentials(session, self.url)
        if credentials is None:
            config = config.merge(Config(signature_version=UNSIGNED))
        try:
            client = session.create_client("s3", region_name=self._region, config=config)
        except (BotoCoreError, ValueError) as error:
            text = f"the S3 client cannot be created: {cause_of(error)}"
            raise ConfigurationError(text, where=self.url, hint="check AWS_* and the profile") from error
        with api_errors(self.url):
            reads = S3Reads(
                client, credentials, self._bucket, connect_seconds=connect, read_seconds=read,
                ca_bundle=session.get_config_variable("ca_bundle") or "",
            )  # fmt: skip
        return client, reads

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        name = {"Key": joined(self._prefix, key)} if key else {}
        arguments |= _demanded(operation)
        client, reads = self._connected()
        with api_errors(self.url, key, is_anonymous=reads.is_anonymous):
            return getattr(client, operation)(Bucket=self._bucket, **name, **arguments)

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[HttpBody]:
        """Open an object for reading from `offset`."""
        name = joined(self._prefix, checked_key(key, self.url))
        headers = {"Range": wanted} if (wanted := range_of(offset, length)) else {}
        if if_match is not None:
            headers["If-Match"] = quoted_etag(if_match)
        with body_of(key, self._get(key, name, headers), offset=offset, length=length) as reader:
            yield reader

    def _get(self, key: str, name: str, headers: Mapping[str, str]) -> DirectResponse:
        """Send a GET in the bucket's own region, and return the response."""
        _, reads = self._connected()
        with api_errors(self.url, key):
            response = reads.get(name, headers, where=self.url)
        if response.status in (200, 206):
            return response
        code, named, message = response.error_fields("Code", "Region", "Message")
        region = redirected_region(response, named, reads.region)
        if region and self._region in (None, region):
            with self._lock:
                self._region, self._made = region, None
            return self._get(key, name, headers)
        answer = Answer(response.status, code, response.header("retry-after"), message)
        raise response_error(S3, answer, self.url, key, is_anonymous=reads.is_anonymous)

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and etag."""
        try:
            answer = self._call("head_object", checked_key(key, self.url))
        except ConfigurationError:
            # A response to HEAD has no body, and S3 answers a bare 400 to an expired token: GET names the reason.
            with self.open(key):
                raise
        return ObjectInfo(key, int(answer["ContentLength"]), plain_etag(answer["ETag"]))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        start = f"{self._prefix}/" if self._prefix else ""

        def read(token: str) -> tuple[Any, str]:
            more = {"ContinuationToken": token} if token else {}
            page = self._call("list_objects_v2", "", Prefix=start + prefix, **more)
            # Every service says whether there is more: an answer that does not is a different document.
            return page.get("Contents", []), page["NextContinuationToken"] if page["IsTruncated"] else ""

        for page in bounded_pages(self.url, read):
            for entry in page:
                yield ObjectInfo(entry["Key"][len(start) :], int(entry["Size"]), plain_etag(entry["ETag"]))

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object atomically, in parts above `multipart_bytes`."""
        checked_key(key, self.url)
        try:
            with opened(data) as (body, size):
                if isinstance(data, Path) and size > self.multipart_bytes:
                    return self._create_in_parts(key, body, size)
                return self._put(key, body, size, IfNoneMatch="*")
        except PreconditionFailedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def delete(self, key: str) -> None:
        """Delete an object, if it exists; a versioned bucket keeps its versions."""
        self._call("delete_object", checked_key(key, self.url))

    def presign(self, key: str, seconds: int) -> str:
        """Return a link, valid for `seconds` or until the credentials end."""
        name = {"Bucket": self._bucket, "Key": joined(self._prefix, checked_key(key, self.url))}
        client, reads = self._connected()
        if reads.is_anonymous:
            raise no_credentials(S3, self.url, key)
        with api_errors(self.url, key):
            return str(client.generate_presigned_url("get_object", Params=name, ExpiresIn=seconds))

    def _put(self, key: str, body: Body, size: int, **arguments: Any) -> ObjectInfo:
        answer = self._call(
            "put_object", key, Body=body, ContentMD5=content_md5(body), ContentType=media_type(key), **arguments
        )
        return ObjectInfo(key, size, plain_etag(answer["ETag"]))

    def _create_in_parts(self, key: str, body: Body, size: int) -> ObjectInfo:
        upload = self._call("create_multipart_upload", key, ContentType=media_type(key))["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            while chunk := body.read(max(_PART_BYTES, -(-size // 10_000))):
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
        """Replace the object if its etag is `if_match`."""
        checked_key(key, self.url)
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_match is None else {"IfMatch": quoted_etag(if_match)}
        try:
            return self._put(key, io.BytesIO(data), len(data), **condition)
        except ObjectMissingError as error:
            if if_match is None:
                raise BucketMissingError("no such bucket", where=self.url, hint="create the bucket first") from error
            raise PreconditionFailedError("the object does not exist any more", where=self.url, key=key) from error


def _demanded(operation: str) -> dict[str, str]:
    """Return request arguments from the environment: requester pays, encryption."""
    arguments: dict[str, str] = {}
    if payer := variable("PLUMBLINE_S3_REQUEST_PAYER"):
        arguments["RequestPayer"] = payer
    if operation in _UPLOADS and (encryption := variable("PLUMBLINE_S3_SSE")):
        arguments["ServerSideEncryption"] = encryption
        if key := variable("PLUMBLINE_S3_KMS_KEY_ID"):
            arguments["SSEKMSKeyId"] = key
    return arguments


def open_url(url: str, address: StoreAddress, waits: Timeouts) -> S3Store:
    """Open the store at an `s3://` URL."""
    connect, read = waits.connect_seconds, waits.read_seconds
    return S3Store(url, address.bucket, address.prefix, connect_seconds=connect, read_seconds=read)
