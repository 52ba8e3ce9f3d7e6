"""Documented installations of the locks, resolved by the oldest pip on a package index made of stubs.

The stubs have the names, the requirements and the extras of the installed packages, and each has a newer release than
the pinned one, as on the real index. Only the hashes in the locks are replaced.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.unit.infra.documented_commands import ROOT, pages
from tests.unit.infra.oldest_pip import OLDEST_PIP, pip_environment

pytestmark = pytest.mark.long

PIN = re.compile(r"^([a-z0-9-]+)(?:\[[^]]*])?==(\S+)", re.MULTILINE)
NEWER = "9999"
SCRIPTS = (
    "infra/worker/Dockerfile", "infra/controller/Dockerfile",
    "deployments/ci/github-actions.yml", "deployments/ci/gitlab-ci.yml",
)  # fmt: skip
INSTALLS = sorted(
    {
        (options.replace("--quiet", "").strip(), name)
        for path in [*pages(), *(ROOT / script for script in SCRIPTS)]
        for options, name in re.findall(
            r"(?:pip install|\$pip) ((?:--[\w-]+ )*)-r (?:\S*/)?locks/([\w-]+)\.txt", path.read_text("utf-8")
        )
    }
)


def write_stub(folder: Path, name: str, version: str, required: list[str], extras: list[str]) -> Path:
    """Write a wheel that consists of its metadata."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Provides-Extra: {extra}" for extra in extras] + [f"Requires-Dist: {line}" for line in required]
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """Return the digest of each stub by name and version; the folder is under the name `folder`."""
    folder = tmp_path_factory.mktemp("index")
    pinned = {pin for path in (ROOT / "locks").glob("*.txt") for pin in PIN.findall(path.read_text("utf-8"))}
    installed = {canonicalize_name(item.metadata["Name"]): item for item in metadata.distributions()}
    digests = {("folder", ""): str(folder)}
    for name, version in pinned:
        known = installed.get(name)
        required = list(known.requires or ()) if known is not None else []
        extras = known.metadata.get_all("Provides-Extra") or [] if known is not None else []
        write_stub(folder, name, NEWER, required, extras)
        stub = write_stub(folder, name, version, required, extras)
        digests[name, version] = hashlib.sha256(stub.read_bytes()).hexdigest()
    return digests


def with_stubs_hashes(text: str, digests: dict[tuple[str, str], str]) -> str:
    """Return a lock with the stubs' hashes in place of each package's own."""
    blocks = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)
    changed = []
    for block in blocks:
        pin = PIN.match(block)
        digest = digests[pin[1], pin[2]] if pin is not None else ""
        changed.append(re.sub(r"( \\\n +--hash=sha256:\w+)+", f" --hash=sha256:{digest}", block))
    return "".join(changed)


def test_the_documentation_installs_every_lock_of_a_machine() -> None:
    assert {name for _, name in INSTALLS} == {"controller", "trainer", "trainer-cuda"}


@pytest.mark.parametrize(
    ("options", "name"),
    # The hashes of the shorter lock are read by the same pip.
    [pytest.param(*install, marks=[pytest.mark.long] * (install[1] == "controller")) for install in INSTALLS],
    ids=lambda value: value.strip("-") or "plain",
)
def test_the_oldest_pip_takes_a_documented_installation(
    tmp_path: Path, index: dict[tuple[str, str], str], options: str, name: str
) -> None:
    lock = tmp_path / f"{name}.txt"
    lock.write_text(with_stubs_hashes((ROOT / "locks" / lock.name).read_text("utf-8"), index), encoding="utf-8")
    # Without `make`, the pip that this Python brings.
    venv.create(tmp_path / "venv", with_pip=not OLDEST_PIP.is_dir())
    where = (
        "--dry-run",
        "--no-index",
        "--no-cache-dir",
        "--find-links",
        index["folder", ""],
    )
    command = [str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "install", *where, *options.split()]
    done = subprocess.run(
        [*command, "-r", str(lock)], env=pip_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    chosen = done.stdout.rpartition("Would install ")[2].split()
    assert len(chosen) > 40
    # A CUDA build of torch needs packages that a lock without hashes does not pin; with hashes pip refuses them.
    pinned = {name for name, _ in PIN.findall(lock.read_text("utf-8"))}
    assert [package for package in chosen if package.removesuffix(f"-{NEWER}") in pinned] == []
