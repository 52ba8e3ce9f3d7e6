"""Environment variables: every setting, address and credential.

A secret that was made with `echo`, an env file with quotes, or a missing secret of a CI job gives a value with a line
break, quotes, or nothing: values are stripped, and an empty one is an absent one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

NONCE = "PLUMBLINE_NONCE"
"""Variable of the trainer with the nonce of its order: other users can list a process's arguments."""
_SECRET = re.compile(r"(?i)(token(?!izers)|secret|passw|credential|connection_string|auth_string|key$|_key_)")
_LEAST_SECRET = 6
"""Minimum length of a value that is taken for a secret: a flag such as `1` is none."""
_QUOTES = "\"'"
_FOREIGN = (
    "AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_", "PREFECT_API_", "PREFECT_UI_URL", "STORAGE_EMULATOR_", "HF_",
    "MLFLOW_",
)  # fmt: skip
"""Names that the clouds' SDKs, Prefect's client, Hugging Face and MLflow read by themselves."""


def variable(name: str, default: str = "", environment: Mapping[str, str] = os.environ) -> str:
    """Return an environment variable's value; `default` if absent or empty."""
    return _cleaned(environment.get(name, "")) or default


def secret_values(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the values of variables with secret-like names, longest first."""
    values = {_cleaned(value) for name, value in environment.items() if _SECRET.search(name)}
    return sorted((value for value in values if len(value) >= _LEAST_SECRET), key=len, reverse=True)


def clean_variables(environment: MutableMapping[str, str] = os.environ) -> None:
    """Clean the variables that libraries read directly; remove empty ones.

    Called where a command starts, before Prefect is imported, and before an SDK is used, by several threads at once.
    """
    for name in [name for name in environment if name.startswith(_FOREIGN)]:
        given = environment.get(name, "")
        if not (value := _cleaned(given)):
            with suppress(KeyError):  # `os.environ.pop` raises it, too, if two threads remove the variable
                del environment[name]
        elif value != given:
            environment[name] = value


def _cleaned(value: str) -> str:
    """Strip surrounding space and one pair of quotes."""
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
        return value[1:-1].strip()
    return value
