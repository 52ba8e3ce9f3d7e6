"""Causes of the errors of cloud libraries, in Plumbline's words.

A library's text may repeat a key, or a variable's whole value: only known sentences are read, and none is quoted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

_PATH = re.compile(r"[\w./~+-]{1,200}")
_KNOWN = tuple(
    (re.compile(pattern, re.DOTALL | re.IGNORECASE), text)
    for pattern, text in (
        # botocore
        (
            r"^Invalid endpoint: ([\w.-]{1,80}(?::\d{1,5})?/?)$",
            "the endpoint {} does not begin with http:// or https://",
        ),
        (r"^Invalid endpoint", "the endpoint is not an address: check AWS_ENDPOINT_URL"),
        (r"^The config profile \(", "the profile does not exist: check AWS_PROFILE"),
        (r"^Unable to parse config file", "a configuration file cannot be parsed: check AWS_CONFIG_FILE"),
        (r"^Partial credentials found in [\w-]+, missing: ([\w, ]+)$", "incomplete credentials, without {}"),
        (r"from custom-process", "the profile's credential_process failed"),
        (r"Token has expired and refresh failed", "Token has expired and refresh failed"),
        (r"SSO (?:session|token)", "the SSO session has ended or does not exist"),
        (r"aws login", "the session of `aws login` has ended or does not exist"),
        (r"^Infinite loop in credential", "the profile's source_profile leads back to itself"),
        (r"^The source[_ ]profile", "the profile's source_profile does not exist or has no credentials"),
        (r"^Unsupported host", "AWS_CONTAINER_CREDENTIALS_FULL_URI is of a host that is not allowed"),
        (r"^Provided region_name", "the region is not a region's name: check AWS_DEFAULT_REGION"),
        (r"^You must specify a region", "no region: set AWS_DEFAULT_REGION"),
        (r"^Failed to connect to proxy", "the proxy does not answer: check HTTPS_PROXY"),
        (
            r"^(?:Could not connect to|Connect timeout on|Read timeout on) (?:the )?endpoint",
            "the endpoint does not answer",
        ),
        # google-auth
        (r"^File '.*' was not found", "the file of its credential_source does not exist"),
        (
            r"^File .* was not found",
            "GOOGLE_APPLICATION_CREDENTIALS is not the path of a file",
        ),
        (r"is not a valid json file", "the credentials' file is not JSON"),
        (r"does not have a valid type", "the credentials' file is of no known type"),
        (r"missing fields ([\w, ]{1,200})\.", "the credentials' file has no {}"),
        (r"^\(?'?((?:invalid|unauthorized|access|unsupported)_\w{1,40}(?:: [\w .,:()-]{1,160})?)", "{}"),
        (
            r"^Reauthentication is needed",
            "Reauthentication is needed: `gcloud auth application-default login`",
        ),
        (r"^Executables need to be explicitly allowed", "set GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES=1"),
        (r"^Executable ", "the executable of its credential_source failed"),
    )
)


def cause_of(error: BaseException, environment: Mapping[str, str] = os.environ) -> str:
    """Return an error's name, and its cause if its text is a known one.

    A missing file is named by the variable that holds its path, else by its path.
    """
    name = type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        return f"{name}: the profile's credential_process prints no JSON"
    if isinstance(error, OSError) and error.filename and error.strerror:
        given = str(error.filename)
        variables = [key for key, value in environment.items() if value.strip() == given]
        shown = variables[:1] or _PATH.findall(given if _PATH.fullmatch(given) else "")
        return ": ".join([name, *shown, error.strerror])
    text = str(next(iter(error.args), ""))
    for pattern, cause in _KNOWN:
        if known := pattern.search(text):
            return f"{name}: {cause.format(*known.groups())}"
    return name
