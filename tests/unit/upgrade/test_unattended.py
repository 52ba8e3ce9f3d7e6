"""Unattended installs come from hashes: a package planted on a public index is never built or installed."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import subprocess
import tarfile
import threading

import pytest

from plumbline.environments.installed import keep_lock
from plumbline.environments.installer import Installer
from plumbline.environments.locks import Pin, read_lock
from plumbline.environments.package_store import PackageStore
from plumbline.night.experiments.ab import build_environments, run_ab
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import read_record
from plumbline.schema.suite import read_suite
from plumbline.upgrade.campaign import UpgradeOptions
from plumbline.upgrade.session import Locks, UpgradeSettings, judge_upgrade
from tests.contract.records import make_record
from tests.train.test_upgrade import SUITE

pytestmark = pytest.mark.long

PRIVATE = "acme-private"
BACKEND = f"""
import json, os, zipfile
with open({{mark!r}}, "w") as file:
    json.dump(dict(os.environ), file)
def build_wheel(folder, *_, **__):
    about = "acme_private-2.0.dist-info"
    with zipfile.ZipFile(os.path.join(folder, "acme_private-2.0-py3-none-any.whl"), "w") as archive:
        archive.writestr("acme_private.py", "")
        archive.writestr(about + "/METADATA", "Metadata-Version: 2.1\\nName: {PRIVATE}\\nVersion: 2.0\\n")
        wheel = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(about + "/WHEEL", wheel)
        archive.writestr(about + "/RECORD", "acme_private.py,,\\n")
    return "acme_private-2.0-py3-none-any.whl"
"""
SECRETS = ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "PREFECT_API_KEY")


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A public index with the private package's name; return the archive and the file that its build writes."""
    folder, mark = tmp_path / "public" / "simple" / PRIVATE, tmp_path / "mark"
    folder.mkdir(parents=True)
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.replace("{mark!r}", repr(str(mark))),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {PRIVATE}\nVersion: 2.0\n",
    }
    archive = folder / "acme_private-2.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"acme_private-2.0/{name}")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
    handler = functools.partial(_Silent, directory=tmp_path / "public")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        for name in SECRETS:
            monkeypatch.setenv(name, "planted")
        yield archive, mark
        server.shutdown()


def _order():
    return AbOrder(packages=((PRIVATE, "2.0"),), num_blocks=5, seconds=1)


def test_the_nightly_ab_does_not_build_a_planted_package(tmp_path, planted):
    """A private package's name, planted on the public index that the worker's pip asks."""
    _, mark = planted

    def train(built, is_tonight, out):
        assert built is None
        assert is_tonight
        make_record(out, "r", "aws")
        return 0

    code, record = run_ab(_order(), lambda order: build_environments(order, tmp_path / "upgrade"), train, tmp_path)
    assert not mark.exists(), "the planted package's code ran with the worker's keys"
    assert code == 0
    answer = read_record(record).evidence.ab.unavailable
    assert answer.startswith(f"packages: cannot be built from hashes: no lock here has a SHA-256 of {PRIVATE} 2.0")


def test_the_gate_does_not_build_a_planted_package(tmp_path, planted):
    _, mark = planted
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / "lock.txt").write_text(f"{PRIVATE}==2.0\n")
    suite, lock = read_suite(tmp_path / "suite.toml"), read_lock(tmp_path / "lock.txt")
    with pytest.raises(ConfigurationError) as caught:
        judge_upgrade(suite, "reviews", Locks(lock), UpgradeSettings(tmp_path / "work"))
    assert not mark.exists(), "the planted package's code ran with the worker's keys"
    assert f"cannot be built from hashes: no lock here has a SHA-256 of {PRIVATE} 2.0" in str(caught.value)
    assert "--allow-unhashed" in str(caught.value)
    with pytest.raises(ConfigurationError, match="--releases: no lock has the hashes"):
        judge_upgrade(
            suite, "reviews", Locks(lock), UpgradeSettings(tmp_path / "work", options=UpgradeOptions(releases=True))
        )


@pytest.mark.parametrize("kind", ["pip", pytest.param("uv", marks=pytest.mark.uv)])
def test_a_person_may_allow_it_and_no_build_sees_a_key(tmp_path, planted, kind, monkeypatch):
    archive, mark = planted
    monkeypatch.setenv("UV_INDEX_URL", os.environ["PIP_INDEX_URL"])
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    for pin in (Pin(name=PRIVATE, version="2.0"), Pin(name=PRIVATE, version="2.0", hashes=(f"sha256:{sha256}",))):
        store = PackageStore(tmp_path / "store", Installer(kind), allows_unhashed=not pin.hashes)
        assert store.add([pin]) == ()
        seen = json.loads(mark.read_text())
        assert not set(SECRETS) & seen.keys()
        assert seen["HOME"] != os.environ["HOME"]
        assert seen["PIP_INDEX_URL"] == os.environ["PIP_INDEX_URL"], "with a login, if it has one: docs/THREATS.md"
        mark.unlink()


def test_an_ab_installs_from_the_lock_that_the_worker_had(tmp_path, planted):
    archive, mark = planted
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    for digest in ("0" * 64, sha256):
        lock.write_text(f"{PRIVATE}==2.0 --hash=sha256:{digest}\n")
        keep_lock(tmp_path / "upgrade", lock)
        lock.write_text("numpy==2\n")
        keep_lock(tmp_path / "upgrade", lock)
        if digest != sha256:
            with pytest.raises(PlumblineError, match=PRIVATE):
                build_environments(_order(), tmp_path / "upgrade")
            assert not mark.exists()
    built = build_environments(_order(), tmp_path / "upgrade")
    subprocess.run([built.baseline, "-c", "import acme_private"], check=True, timeout=300)


def test_asking_whether_the_index_answers_builds_nothing(tmp_path, planted):
    _, mark = planted
    store = PackageStore(tmp_path / "store", Installer("pip"))
    store.add([Pin(name=PRIVATE, version="2.0", hashes=("sha256:" + "0" * 64,))])
    assert not mark.exists()
