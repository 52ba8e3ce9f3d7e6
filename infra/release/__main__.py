"""Build a tag's wheel, sdist, SBOM and digests, the same bytes from every clone; `make release` runs this.

    python infra/release [TAG] [--repository https://github.com/OWNER/NAME] [--out dist]

The files are the tag's, not the working tree's. What an index shows, the README and the project's links, leads to the
repository; the checkout keeps relative links.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("controller", "trainer-cuda")
"""Locks with hashes, which the SBOM lists."""
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?://|#)([^)\s]+)\)")
ADDRESS = re.compile(r"https://[\w.-]+/[\w.-]+/[\w.-]+")
PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)(?:.*\\\n(?: +--hash=\S+(?: \\)?\n)+)", re.MULTILINE)
BUILD = """
import os, sys
from setuptools import build_meta
os.umask(0o022)
out = sys.argv[1]  # setuptools replaces the arguments
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def main() -> int:
    """Build, and print the digests."""
    parser = argparse.ArgumentParser(prog="infra/release", description=__doc__.partition("\n")[0])
    parser.add_argument("tag", nargs="?", default="", help="default: the tag of the checked out commit")
    parser.add_argument("--repository", default="", help="address that the index shows (default: the remote `origin`)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty folder (%(default)s)")
    args = parser.parse_args()
    tag = args.tag or git("describe", "--exact-match", "--tags", or_else="the checked out commit has no tag: name one")
    repository = args.repository or address_of(git("remote", "get-url", "origin", or_else="no remote: --repository"))
    if not ADDRESS.fullmatch(repository):
        return fail(f"{repository}: not https://HOST/OWNER/NAME (hint: make release REPOSITORY=...)")
    if args.out.exists() and any(args.out.iterdir()):
        return fail(f"{args.out}: is not empty (hint: remove it)")
    args.out.mkdir(parents=True, exist_ok=True)
    epoch = int(git("log", "-1", "--format=%ct", f"{tag}^{{commit}}", "--", or_else=f"no such tag: {tag}"))
    with tempfile.TemporaryDirectory() as folder:
        tree = export(tag, Path(folder) / "tree")
        project = tomllib.loads((tree / "pyproject.toml").read_text("utf-8"))["project"]
        if tag != f"v{project['version']}":
            return fail(f"{tag}: pyproject.toml has the version {project['version']}")
        for name, change in (("README.md", with_links), ("pyproject.toml", with_urls)):
            text = (tree / name).read_text("utf-8")
            (tree / name).write_text(change(text, repository, tag), "utf-8")
        build(tree, args.out, epoch)
        (args.out / f"{stem(project)}.cdx.json").write_text(sbom(tree, project, epoch), "utf-8")
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in sorted(args.out.iterdir()))
    (args.out / "SHA256SUMS").write_text(sums, "utf-8")
    sys.stdout.write(sums)
    return 0


def git(*arguments: str, or_else: str) -> str:
    """Return what git prints; end with one line if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        raise SystemExit(fail(or_else))
    return done.stdout.strip()


def fail(line: str) -> int:
    """Print an error, and return its exit code."""
    sys.stderr.write(f"release: {line}\n")
    return 2


def address_of(remote: str) -> str:
    """Return the address of a remote: `git@HOST:OWNER/NAME.git` is `https://HOST/OWNER/NAME`."""
    remote = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", remote)
    return remote.removesuffix("/").removesuffix(".git")


def export(tag: str, tree: Path) -> Path:
    """Write the tag's files, with rights that no umask changes."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", tag], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    return tree


def with_links(readme: str, repository: str, tag: str) -> str:
    """Return the README with absolute links; pictures by the address of their bytes."""
    kind = {"!": "raw", "": "blob"}
    return LINK.sub(lambda link: f"{link[1]}{link[2]}({repository}/{kind[link[1]]}/{tag}/{link[3]})", readme)


def with_urls(project: str, repository: str, tag: str) -> str:
    """Return pyproject.toml with the project's links."""
    pages = {
        "Homepage": repository, "Documentation": f"{repository}/tree/{tag}/docs", "Source": f"{repository}/tree/{tag}",
        "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md", "Issues": f"{repository}/issues",
    }  # fmt: skip
    lines = "".join(f'{name} = "{url}"\n' for name, url in pages.items())
    return project.replace("[project.scripts]\n", f"[project.urls]\n{lines}\n[project.scripts]\n", 1)


def build(tree: Path, out: Path, epoch: int) -> None:
    """Build the sdist and the wheel by this environment's setuptools, which `setuptools.txt` pins by its hash."""
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
        "LC_ALL": "C.UTF-8",
    }
    command = [sys.executable, "-c", BUILD, str(out.resolve())]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(fail(f"setuptools failed: {done.stderr.strip().splitlines()[-1:]}"))
    (sdist,) = out.glob("*.tar.gz")
    repack(sdist, epoch)


def repack(sdist: Path, epoch: int) -> None:
    """Write an archive again with the tag's time and no owner: setuptools writes the time and the user of the build."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


def sbom(tree: Path, project: dict[str, Any], epoch: int) -> str:
    """Return a CycloneDX document of the packages that the locks with hashes pin."""
    pinned: dict[tuple[str, str], set[str]] = {}
    for name in LOCKS:
        for pin in PIN.finditer((tree / "locks" / f"{name}.txt").read_text("utf-8")):
            pinned.setdefault((pin[1], pin[2]), set()).update(re.findall(r"--hash=sha256:([0-9a-f]{64})", pin[0]))
    components = [
        {
            "type": "library", "bom-ref": f"pkg:pypi/{name}@{version}", "name": name, "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "externalReferences": [{
                "type": "distribution", "url": f"https://pypi.org/project/{name}/{version}/",
                "hashes": [{"alg": "SHA-256", "content": content} for content in sorted(hashes)],
            }],
        }
        for (name, version), hashes in sorted(pinned.items())
    ]  # fmt: skip
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    main_component = {
        "type": "application", "bom-ref": own, "name": project["name"], "version": project["version"],
        "licenses": [{"license": {"id": project["license"]}}], "purl": own,
    }  # fmt: skip
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, components])).urn,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "component": main_component,
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [component["bom-ref"] for component in components]}],
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"


def stem(project: dict[str, Any]) -> str:
    """Return the start of the release's file names."""
    return f"{project['name'].replace('-', '_')}-{project['version']}"


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    raise SystemExit(main())
