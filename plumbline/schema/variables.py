"""Environment variables: every setting, address and credential.

A secret that was made with `echo`, an env file with quotes, or a missing secret of a CI job gives a value with a line
break, quotes, or nothing: values are stripped, and an empty one is an absent one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from plumbline.schema.errors import ConfigurationError

NONCE = "PLUMBLINE_NONCE"
"""Variable of the trainer with the nonce of its order: other users can list a process's arguments."""
EXPERIMENT = "PLUMBLINE_EXPERIMENT"
"""Variable of a captured training with the folder of the experiment that it runs."""
_SECRET = re.compile(r"(?i)(token(?!izers)|secret|passw|credential|connection_string|auth_string|key$|_key_)")
_LEAST_SECRET = 6
"""Minimum length of a value that is taken for a secret: a flag such as `1` is none."""
_QUOTES = "\"'"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OWN_HOSTS = ("localhost", "127.0.0.1")
_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with the file of trusted authorities, which Python's HTTP clients read when they are made."""
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
    _leave_out_own_servers(environment)


def _leave_out_own_servers(environment: MutableMapping[str, str]) -> None:
    """Ask servers on this machine without the proxy, which cannot reach them. Some libraries read one case only."""
    if any(name.lower() in _PROXIES and value for name, value in environment.items()):
        known = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
        for name in ("no_proxy", "NO_PROXY"):
            hosts = [host.strip() for host in (environment.get(name) or known).split(",")]
            added = [host for host in _OWN_HOSTS if host not in hosts and "*" not in hosts]
            environment[name] = ",".join(filter(None, [*hosts, *added]))


def variable_error(error: BaseException, environment: Mapping[str, str] = os.environ) -> ConfigurationError | None:
    """Return the error of a variable that a library refuses when it is imported or makes a client, else `None`.

    The variable's value is not quoted: it may have a login.
    """
    names, hint = _refused_by_library(error, environment)
    if not names:
        return None
    return ConfigurationError("its value is refused", where="environment", key=" or ".join(names), hint=hint)


def _refused_by_library(error: BaseException, environment: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the variables that may cause an error, and a hint."""
    title, text = str(getattr(error, "title", "")), str(error)
    if title.endswith("Settings") and isinstance(error, ValueError):  # pydantic's, of Prefect
        key, _, reason = text.partition("\n")[2].partition("\n")
        suffix = f"_{key.rpartition('.')[2].upper()}"
        names = [name for name in environment if name.startswith("PREFECT_") and name.endswith(suffix)]
        return names or [f"PREFECT_...{suffix} (profile or .env)"], reason.partition(" [type=")[0].strip()
    proxies = [name for name in environment if name.lower() in (*_PROXIES, "no_proxy") and environment[name]]
    if isinstance(error, ImportError) and "SOCKS" in text:
        is_socks = [name for name in proxies if environment[name].startswith("socks")]
        return is_socks or proxies, "pip install 'httpx[socks]', or name an http:// proxy"
    if type(error).__name__ == "InvalidURL" or "proxy URL" in text:
        odd = [name for name in proxies if name.lower() == "no_proxy" and re.search(r"[][/]", environment[name])]
        return (
            odd or proxies,
            "a proxy is http://HOST:PORT; NO_PROXY has names and addresses, without brackets or networks",
        )
    if isinstance(error, OSError) and not error.filename:
        wrong = [name for name in _AUTHORITIES if environment.get(name) and not Path(environment[name]).is_file()]
        return wrong, "name a file that exists, or unset it"
    return [], ""


def _cleaned(value: str) -> str:
    """Strip surrounding space and one pair of quotes."""
    value = value.strip()
    if len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES:
        return value[1:-1].strip()
    return value
