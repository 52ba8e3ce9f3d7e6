"""Conversion of the errors of Azure's SDK."""

from __future__ import annotations

from typing import Any

from plumbline.errors import AccessError, PlumblineError
from plumbline.stores.protocol import StoreUnavailableError
from plumbline.stores.service_errors import AZURE, Answer, no_credentials, response_error, unsendable

__all__ = ["sdk_error"]


def sdk_error(error: Exception, where: str, key: str, *, is_anonymous: bool = False) -> PlumblineError:
    """Return the error of a failed call of the SDK."""
    from azure.core import exceptions

    converted = None
    if isinstance(error, exceptions.HttpResponseError) and error.response is not None:
        status = int(error.status_code or error.response.status_code or 0)
        retry = str(getattr(error.response, "headers", {}).get("Retry-After", ""))
        answer = Answer(status, _code(error, status), retry)
        converted = response_error(AZURE, answer, where, key, is_anonymous=is_anonymous)
    if isinstance(error, exceptions.ClientAuthenticationError):
        # Entra refuses an identity with HTTP 400 or 404 too, which say something else of a blob.
        is_known = isinstance(converted, (AccessError, StoreUnavailableError))
        return converted if converted is not None and is_known else no_credentials(AZURE, where, key)
    if converted is not None:
        return converted
    if isinstance(error, (exceptions.ServiceRequestError, exceptions.ServiceResponseError)):
        text = f"no answer: {type(error).__name__}"
        return unsendable(error, where) or StoreUnavailableError(text, where=where)
    return StoreUnavailableError(f"{type(error).__name__} of the SDK", where=where)


def _code(error: Any, status: int) -> str:
    """Return the service's error code; its message may contain a signature."""
    code = getattr(error, "error_code", None) or ("BlobAlreadyExists" if status == 409 else status)
    return str(getattr(code, "value", code))
