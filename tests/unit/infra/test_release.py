"""A release, built from a tag in fresh clones by the workflow's own steps, as far as they go without an index."""

from __future__ import annotations

import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from drills.newcomer import clone_of_the_repository
from tests.unit.infra.documented_commands import ROOT
from tests.unit.infra.pins import pins

pytestmark = [pytest.mark.long, pytest.mark.git, pytest.mark.index]

ADDRESS = "https://git.example.com/team/plumbline"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
TAG = f"v{VERSION}"
PAGE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md")


def clone(folder: Path) -> Path:
    """Return a clone of the checked out commit, with the tag, and with this environment's build tool."""
    cloned = clone_of_the_repository(folder)
    subprocess.run(["git", "-C", str(cloned), "tag", TAG], check=True)
    (cloned / ".venv").symlink_to(Path(sys.executable).parents[1])
    # Older than the environment of the build, which `make` makes for the first clone alone.
    os.utime(cloned / "infra/release/setuptools.txt", (0, 0))
    return cloned


def scripts() -> list[str]:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text("utf-8"))["jobs"]
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    summary = {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script], cwd=folder,
        env={**os.environ, **summary, **environment}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone in which the workflow's first job has run."""
    cloned = clone(tmp_path_factory.mktemp("release") / "clone")
    done = run(scripts()[0], cloned, TAG=TAG, REPOSITORY=ADDRESS)
    assert done.returncode == 0, done.stdout + done.stderr
    return cloned


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(next((built / "dist").glob("*.whl")))


def test_a_second_clone_of_a_different_user_and_time_gives_the_same_bytes(built: Path, tmp_path: Path) -> None:
    second = clone(tmp_path / "clone")
    done = run(f"umask 077; make release REPOSITORY={ADDRESS}", second, TZ="Asia/Tokyo", SOURCE_DATE_EPOCH="1")
    assert done.returncode == 0, done.stderr
    sums = (built / "dist" / "SHA256SUMS").read_text("utf-8")
    assert (second / "dist" / "SHA256SUMS").read_text("utf-8") == sums
    assert [line.split()[1].partition("-")[2] for line in sums.splitlines()] == [
        f"{VERSION}-py3-none-any.whl", f"{VERSION}.cdx.json", f"{VERSION}.tar.gz",
    ]  # fmt: skip


def test_what_the_index_gets_is_the_checked_wheel_and_sdist_alone(built: Path) -> None:
    done = run("cp -r dist kept; " + scripts()[1], built)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.suffix for path in (built / "dist").iterdir()) == [".gz", ".whl"]
    (built / "dist").rename(built / "indexed")
    (built / "kept").rename(built / "dist")
    (built / "dist" / "SHA256SUMS").write_text("0" * 64 + f"  plumbline_training-{VERSION}.tar.gz\n", "utf-8")
    assert run(scripts()[1], built).returncode != 0


def test_the_metadata_and_every_link_lead_to_the_repository(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    about = email.message_from_bytes(wheel.read(name))
    assert (about["Name"], about["Version"], about["License-Expression"]) == (
        "plumbline-training",
        VERSION,
        "Apache-2.0",
    )
    assert about["Author"]
    links = dict(line.split(", ") for line in about.get_all("Project-URL") or [])
    assert links.keys() == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert all(link.startswith(ADDRESS) for link in links.values())
    text = about.get_payload()
    assert f"]({ADDRESS}/raw/{TAG}/docs/images/report.png)" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    for path in re.findall(rf"\]\({ADDRESS}/(?:blob|raw)/{TAG}/([^)#]+)", text):
        assert (ROOT / path).exists(), path


def test_the_wheel_has_the_packages_and_each_page_that_an_error_names(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"plumbline/{name}/__init__.py" for name in ("cli", "flows", "tasks", "train")} <= names
    assert not [name for name in names if name.startswith(("tests/", "bench/"))]
    code = [name for name in names if name.endswith((".py", ".toml"))]
    pages = {page for name in code for page in PAGE.findall(wheel.read(name).decode())}
    shipped = {name.partition("/share/plumbline/")[2] for name in names}
    assert len(pages) > 5
    assert pages <= shipped


def test_the_sbom_lists_what_the_locks_with_hashes_pin(built: Path) -> None:
    document = json.loads(next((built / "dist").glob("*.cdx.json")).read_text("utf-8"))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    listed = {(part["name"], part["version"]) for part in document["components"]}
    assert listed == {pin for name in ("controller", "trainer-cuda") for pin in pins(name).items()}
    hashes = [part["externalReferences"][0]["hashes"] for part in document["components"]]
    assert all(re.fullmatch("[0-9a-f]{64}", one["content"]) for each in hashes for one in each)
    assert all(hashes)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["v9.9.9", "--repository", ADDRESS], "release: no such tag: v9.9.9"),
        (
            [TAG, "--repository", "here"],
            "release: here: not https://HOST/OWNER/NAME (hint: make release REPOSITORY=...)",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(built: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, str(built / "infra" / "release"), *arguments, "--out", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"{line}\n")


def test_the_digests_are_of_the_files(built: Path) -> None:
    for line in (built / "again" / "SHA256SUMS").read_text("utf-8").splitlines():
        digest, name = line.split()
        assert hashlib.sha256((built / "again" / name).read_bytes()).hexdigest() == digest
