"""Check of everything below `infra/` by its own tools, and of each check by errors planted in a copy.

`make infra-check` installs the tools and runs it: `python infra/check FOLDER_OF_TOOLS [CASE]`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.argv[1] if sys.argv[1:] else ".venv/infra-tools").resolve()
ONE_CASE = "".join(sys.argv[2:])
"""A case of the engine that is the only check, without its second plan and destroy."""
sys.path[:0] = [str(TOOLS), str(ROOT)]
from clouds import CASES, check_case, check_on_moto, check_refused, check_versions  # noqa: E402 - its protocol is a tool
from engine import PROGRAM, Applied, Engine, open_engine  # noqa: E402
from resolved import first_files  # noqa: E402

Check = Callable[[Path], Iterator[str]]
_TEMPLATE = "infra/kubernetes/gpu-job-template.json"
_UNIT = "infra/systemd/plumbline-worker.service"
_YAML = "{extends: relaxed, rules: {line-length: {max: 160}}}"
_KUBERNETES = "1.33"
ABSENT = [program for program in ("cloud-init", "systemd-analyze") if shutil.which(program) is None]
ABSENT += [] if PROGRAM else ["terraform or tofu"]
"""Programs of the machine, which no package index has."""
_EXPOSURE = "35"
"""Largest exposure of the unit by systemd's own count, in tenths of ten."""


def run_tool(root: Path, command: list[str], *, packages: Path = TOOLS, text: str | None = None) -> Iterator[str]:
    """Yield what a tool says if it fails; its packages are found in `packages`."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment["PATH"] = f"{packages / 'bin'}:{os.environ.get('PATH', '')}"
    done = subprocess.run(
        command, cwd=root, env=environment, input=text, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        yield f"{Path(command[0]).name}: {(done.stdout + done.stderr).strip()}"


def check_images(root: Path) -> Iterator[str]:
    """Yield the findings of hadolint."""
    # Packages of the distribution have no fixed version, and users of an image are named in it.
    ignored = ["--ignore", "DL3008", "--ignore", "DL3066"]
    yield from run_tool(root, [_tool("hadolint"), *ignored, *_files(root, "infra/*/Dockerfile")])


def check_workflows(root: Path) -> Iterator[str]:
    """Yield the findings about CI's workflows."""
    workflows = _files(root, ".github/workflows/*.yml", "deployments/ci/github-actions.yml")
    own = "deployments/ci/pull-request.yml"  # a team replaces the Action's COMMIT, which is no hash yet
    yield from run_tool(root, [_tool("actionlint"), *workflows, *_files(root, own)])
    yield from run_tool(root, [_tool("zizmor"), "--offline", "--quiet", *workflows, *_files(root, "action.yml")])


def check_text(root: Path) -> Iterator[str]:
    """Yield the findings about YAML and shell."""
    folders = ["infra/check", "deployments", ".github"]
    yield from run_tool(root, [_tool("yamllint"), "-d", _YAML, *folders])
    yield from run_tool(root, [_tool("shellcheck"), *_files(root, "infra/*.sh", "examples/*.sh")])


def check_first_start(root: Path, applied: Applied) -> Iterator[str]:
    """Yield the findings of shellcheck and cloud-init about what a machine gets."""
    for data, files in first_files(applied):
        for text in files.values():
            if text.startswith("#!/bin/sh"):
                yield from run_tool(root, [_tool("shellcheck"), "-"], text=text)
        if "cloud-init" not in ABSENT:
            with tempfile.NamedTemporaryFile("wb", suffix=".yaml") as file:
                file.write(data)
                file.flush()
                yield from run_tool(root, ["cloud-init", "schema", "--config-file", file.name])


def check_unit(root: Path) -> Iterator[str]:
    """Yield what systemd says of the worker's service, if it may do more than it needs."""
    if "systemd-analyze" not in ABSENT:
        with tempfile.TemporaryDirectory() as folder:
            # systemd looks for the program, which is on the worker's machine only.
            copy = Path(folder) / Path(_UNIT).name
            copy.write_text(re.sub("/opt/plumbline/venv/bin/[a-z]+", "/bin/true", (root / _UNIT).read_text("utf-8")))
            options = ["security", "--offline=yes", "--no-pager", f"--threshold={_EXPOSURE}"]
            yield from run_tool(root, ["systemd-analyze", *options, str(copy)])


def check_pod(root: Path) -> Iterator[str]:
    """Yield faults of the pod that the Kubernetes template makes with its defaults."""
    template = json.loads((root / _TEMPLATE).read_text("utf-8"))
    values = {name: item.get("default") for name, item in template["variables"]["properties"].items()}
    job = _filled(template["job_configuration"]["job_manifest"], values | {"image": "worker:1", "name": "run"})
    job["metadata"]["labels"], job["metadata"]["annotations"] = {}, {}
    pod = job["spec"]["template"]["spec"]
    # Prefect asks for both, and Kubernetes ignores them.
    del pod["parallelism"], pod["completions"]
    container = pod["containers"][0]
    container["args"] = ["prefect", "flow-run", "execute"]
    if container.get("securityContext", {}).get("privileged") or pod.get("hostNetwork") or pod.get("hostPID"):
        yield f"{_TEMPLATE}: the pod is privileged"
    image = template["variables"]["properties"]["image"].get("default", "")
    if image and (":" not in image or image.endswith(":latest")):
        yield f"{_TEMPLATE}: the image {image} moves"
    code = (
        "import json, sys, kubernetes_validate as check\n"
        "try:\n"
        f"    check.validate(json.load(sys.stdin), {_KUBERNETES!r}, strict=True)\n"
        "except check.ValidationError as error:\n"
        "    sys.exit(error.message)\n"
    )
    for finding in run_tool(root, [sys.executable, "-c", code], text=json.dumps(job)):
        yield f"{_TEMPLATE}: {finding}"


def check_charts(root: Path, applied: Applied) -> Iterator[str]:
    """Yield values that Prefect's charts do not take, or that name an image whose content moves."""
    for release in applied.of("helm_release"):
        chart = release.value["chart"].removeprefix("prefect-")
        if chart not in ("server", "worker"):
            continue
        schema = json.loads((root / f"infra/control/{chart}.schema.json").read_text("utf-8"))
        given = yaml.safe_load(release.value["values"][0])
        for error in jsonschema.Draft7Validator(_closed(schema)).iter_errors(given):
            yield f"{release.address}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        image = given.get("worker", given.get("global", {}).get("prefect", {})).get("image", {})
        if "latest" in image.get("prefectTag", "latest"):
            yield f"{release.address}: the image {image} moves"


def check_format(root: Path) -> Iterator[str]:
    """Yield modules that the engine's formatter would change."""
    if PROGRAM:
        yield from run_tool(root, [PROGRAM, "fmt", "-check", "-recursive", "infra"])


def check_security(root: Path) -> Iterator[str]:
    """Yield the findings of checkov."""
    packages = TOOLS / "checkov"
    config = str(root / "infra/check/checkov.yaml")
    command = [sys.executable, str(packages / "bin/checkov"), "--config-file", config, "--directory", "infra"]
    yield from run_tool(root, command, packages=packages)


CHECKS: tuple[Check, ...] = (
    check_images, check_workflows, check_text, check_unit, check_pod, check_format, check_security,
)  # fmt: skip


def check_engine(engine: Engine, root: Path, case: str = "") -> Iterator[str]:
    """Yield what the engine, and the values that it resolved, say of one case, or of all of them as a whole."""
    for name in [case] if case else CASES:
        for applied, findings in check_case(engine, root, name, whole=not case):
            yield from findings
            if not findings and name in (case, "tutorial"):
                yield from (f"{name}: charts: {finding}" for finding in check_charts(root, applied))
                yield from (f"{name}: first start: {finding}" for finding in check_first_start(root, applied))
    if not case:
        yield from check_refused(engine, root)
        yield from check_on_moto(engine, root)


class Planted(NamedTuple):
    """An error in a copy: the text that replaces another, and a word of the finding."""

    name: str
    check: str
    """Name of a check of files, or of the engine's case."""
    path: str
    old: str
    new: str
    word: str


PLANTED = [
    Planted(*error) for error in tomllib.loads(Path(__file__).with_name("planted.toml").read_text("utf-8"))["errors"]
]


def undetected(engine: Engine | None) -> Iterator[str]:
    """Plant each error in a copy; yield the errors that their check does not find."""
    of_files = {check.__name__.removeprefix("check_"): check for check in CHECKS}
    for planted in PLANTED:
        check = of_files.get(planted.check)
        if planted.word.removesuffix(": ") in ABSENT or (check in (None, check_format) and engine is None):
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            skipped = shutil.ignore_patterns("node_modules", "__pycache__")
            for part in ("infra", "deployments", ".github", "examples", "locks", "plumbline/schema", "docs/tutorials"):
                shutil.copytree(ROOT / part, copy / part, ignore=skipped)
            text = (copy / planted.path).read_text("utf-8")
            if planted.old not in text:
                yield f"{planted.name}: could not be planted in {planted.path}"
                continue
            (copy / planted.path).write_text(text.replace(planted.old, planted.new, 1), "utf-8")
            found = list(check(copy) if check else check_engine(engine, copy, planted.check))
            if not any(planted.word in finding for finding in found):
                yield f"{planted.name}: planted in {planted.path}, and not found{f' ({found[0]})' if found else ''}"


def _tool(name: str) -> str:
    return str(TOOLS / "bin" / name)


def _files(root: Path, *patterns: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))


def _closed(schema: Any) -> Any:
    """Return a chart's schema that allows no unknown key where it names the known ones; Helm ignores these."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    return closed | {"additionalProperties": False} if isinstance(closed.get("properties"), dict) else closed


def _filled(part: Any, values: dict[str, Any]) -> Any:
    """Return a part of the template with its variables' values."""
    if isinstance(part, dict):
        return {key: _filled(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, values) for value in part]
    if not isinstance(part, str):
        return part
    whole = re.fullmatch(r"\{\{ (\w+) \}\}", part)
    return values[whole[1]] if whole else re.sub(r"\{\{ (\w+) \}\}", lambda name: str(values[name[1]]), part)


def main() -> int:
    """Print the findings; return 1 if there is one, and 3 if a program is missing."""
    faults = []

    def say(name: str, found: list[str]) -> None:
        faults.extend(found)
        print(f"{name}: {len(found)} findings", *found, sep="\n  ", flush=True)  # noqa: T201 - a program

    if ONE_CASE:
        with open_engine(ROOT, TOOLS / "schemas") as engine:
            say(ONE_CASE, list(check_engine(engine, ROOT, ONE_CASE)))
        return int(bool(faults))
    for check in CHECKS:
        say(check.__name__.removeprefix("check_"), list(check(ROOT)))
    with open_engine(ROOT, TOOLS / "schemas") if PROGRAM else nullcontext() as engine:
        if engine is not None:
            say("versions", list(check_versions(engine, ROOT)))
            say(f"engine ({PROGRAM})", list(check_engine(engine, ROOT)))
        missed = list(undetected(engine))
    say(f"planted errors that were not found, of {len(PLANTED)}", missed)
    for program in ABSENT:
        print(f"{program}: is not on this machine: nothing was checked by it (hint: install it)")  # noqa: T201
    if not faults and not ABSENT:
        print(f"infra: no finding; each of {len(PLANTED)} planted errors was found")  # noqa: T201
    return 1 if faults else 3 if ABSENT else 0


if __name__ == "__main__":
    sys.exit(main())
