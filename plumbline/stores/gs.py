"""Google Cloud Storage through its XML endpoint, which speaks S3's protocol but has preconditions of its own.

Credentials are HMAC keys, `GS_ACCESS_KEY_ID` and `GS_SECRET_ACCESS_KEY`, or else the identity of the machine or pod.
Never boto3's own chain: Amazon's credentials are none of Google's business. `PLUMBLINE_GS_ENDPOINT` replaces the
endpoint.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumbline.stores.base import ObjectExistsError, ObjectInfo, ObjectMissingError, PreconditionFailedError
from plumbline.stores.google_identity import MachineToken
from plumbline.stores.keys import checked_key, plain_etag
from plumbline.stores.s3 import S3Store

__all__ = ["GoogleStore"]

_GENERATION = "x-goog-generation"
_CONDITION = "x-goog-if-generation-match"


class GoogleStore(S3Store):
    """One bucket, from a prefix down. Objects go up in one request, whatever their size: the endpoint takes 5 TiB."""

    def _make_client(self, **overrides: Any) -> Any:
        endpoint = os.environ.get("PLUMBLINE_GS_ENDPOINT", "https://storage.googleapis.com")
        options: dict[str, Any] = {"endpoint_url": endpoint, "region_name": "auto", **overrides}
        config: dict[str, Any] = {"s3": {"addressing_style": "path"}}
        token = None
        if (key := os.environ.get("GS_ACCESS_KEY_ID")) and (secret := os.environ.get("GS_SECRET_ACCESS_KEY")):
            options |= {"aws_access_key_id": key, "aws_secret_access_key": secret}
        else:
            from botocore import UNSIGNED

            config["signature_version"] = UNSIGNED
            token = MachineToken(self.url)
            token.value()
        client = super()._make_client(config=config, **options)
        if token is not None:
            client.meta.events.register("before-send.s3", token.give)
        client.meta.events.register("before-parameter-build.s3.PutObject", _take_condition)
        client.meta.events.register("before-call.s3.PutObject", _give_condition)
        return client

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object: one of generation 0."""
        checked_key(key, self.url)
        try:
            if not isinstance(data, Path):
                return self._put(key, data, Metadata={_CONDITION: "0"})
            with data.open("rb") as file:
                return self._put(key, file, size=data.stat().st_size, Metadata={_CONDITION: "0"})
        except PreconditionFailedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match`: that of the generation seen with this etag."""
        checked_key(key, self.url)
        generation = "0" if if_match is None else self._generation(key, if_match)
        return self._put(key, bytes(data), Metadata={_CONDITION: generation})

    def _generation(self, key: str, etag: str) -> str:
        try:
            answer = self._call("head_object", key)
        except ObjectMissingError as error:
            raise PreconditionFailedError("the object is gone", where=self.url, key=key) from error
        generation = answer["ResponseMetadata"]["HTTPHeaders"].get(_GENERATION, "")
        if plain_etag(answer["ETag"]) != plain_etag(etag) or not generation:
            raise PreconditionFailedError("the object has changed", where=self.url, key=key)
        return str(generation)


def _take_condition(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Carry the generation past boto3, whose model does not know the header."""
    context[_CONDITION] = params.pop("Metadata")[_CONDITION]


def _give_condition(params: Mapping[str, Any], context: Mapping[str, Any], **_: Any) -> None:
    """Set the header before the request is signed."""
    params["headers"][_CONDITION] = context[_CONDITION]
