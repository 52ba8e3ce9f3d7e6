"""Check of everything below `infra/` by its own tools, and of each check by an error planted in a copy.

`make infra-check` installs the tools and runs it: `python infra/check.py FOLDER_OF_TOOLS`.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_TEMPLATE = "infra/kubernetes/gpu-job-template.json"
_YAML = "{extends: relaxed, rules: {line-length: {max: 160}}}"
_KUBERNETES = "1.33"


def run_tool(root: Path, tools: Path, name: str, *arguments: str) -> Iterator[str]:
    """Yield what a tool says if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{os.environ.get('PATH', '')}"}
    done = subprocess.run(
        [tools / "bin" / name, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        yield f"{name}: {(done.stdout + done.stderr).strip()}"


def check_tools(root: Path, tools: Path) -> Iterator[str]:
    """Yield the findings of the linters."""
    # Packages of the distribution have no fixed version, and users of an image are named in it.
    ignored = ("--ignore", "DL3008", "--ignore", "DL3066")
    yield from run_tool(root, tools, "hadolint", *ignored, *_files(root, "infra/*/Dockerfile"))
    workflows = _files(root, ".github/workflows/*.yml", "deployments/ci/github-actions.yml")
    yield from run_tool(root, tools, "actionlint", *workflows)
    yield from run_tool(root, tools, "zizmor", "--offline", "--quiet", *workflows)
    yield from run_tool(root, tools, "yamllint", "-d", _YAML, "infra/cloud-init", "deployments", ".github")
    yield from run_tool(root, tools, "shellcheck", *_files(root, "infra/*.sh", "examples/*.sh"))


def check_policies(root: Path) -> Iterator[str]:
    """Yield statements of AWS's policies that allow everybody, or every action."""
    for name in _files(root, "infra/aws/*.json"):
        for statement in json.loads((root / name).read_text("utf-8"))["Statement"]:
            if statement["Effect"] != "Allow":
                continue
            if statement.get("Principal") in ("*", {"AWS": "*"}):
                yield f"{name}: allows everybody"
            actions = statement["Action"]
            if any("*" in action for action in ([actions] if isinstance(actions, str) else actions)):
                yield f"{name}: allows every action that matches {actions}"


def check_roles(root: Path) -> Iterator[str]:
    """Yield wildcards in roles of Azure and Google Cloud."""
    for name in _files(root, "infra/azure/*role*.json", "infra/gcp/*role*.json"):
        role = json.loads((root / name).read_text("utf-8"))
        if wild := [action for action in role.get("DataActions", role.get("includedPermissions")) if "*" in action]:
            yield f"{name}: allows every action that matches {wild}"


def check_pod(root: Path, tools: Path) -> Iterator[str]:
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
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(job), env={**os.environ, "PYTHONPATH": str(tools)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        yield f"{_TEMPLATE}: {done.stderr.strip()}"


def check_machines(root: Path) -> Iterator[str]:
    """Yield machines whose driver is too old for the CUDA lock, although their row names its CUDA."""
    lock = (root / "locks" / "trainer-cuda.txt").read_text("utf-8")
    need = re.search(r"CUDA (\d+)\.\S+ needs the NVIDIA driver (\d+)", lock)
    if need is None:
        yield "locks/trainer-cuda.txt: does not state its driver"
        return
    for machine in tomllib.loads((root / "plumbline/schema/machines.toml").read_text("utf-8"))["machines"]:
        if machine["cuda"] == need[1] and int(machine["driver"].partition(".")[0]) < int(need[2]):
            yield f"machines.toml: {machine['type']}: driver {machine['driver']} is older than {need[2]}"


def findings(root: Path, tools: Path) -> list[str]:
    """Return every finding of every check."""
    return [
        *check_tools(root, tools), *check_policies(root), *check_roles(root), *check_pod(root, tools),
        *check_machines(root),
    ]  # fmt: skip


PLANTED: dict[str, tuple[str, Callable[[str], str], str]] = {
    "public bucket": (
        "infra/aws/outbox-bucket-policy.json", lambda text: text.replace('"Deny"', '"Allow"', 1), "allows everybody",
    ),
    "wildcard action": (
        "infra/aws/worker-policy.json", lambda text: text.replace('"s3:GetObject"', '"s3:*"', 1), "every action",
    ),
    "misspelt argument": (_TEMPLATE, lambda text: text.replace('"restartPolicy"', '"restartPolcy"'), "restartPolcy"),
    "privileged pod": (
        _TEMPLATE, lambda text: text.replace('"allowPrivilegeEscalation": false', '"privileged": true'), "privileged",
    ),
    "latest image": (
        "infra/controller/Dockerfile", lambda text: re.sub(r"(?m)^FROM \S+", "FROM python:latest", text), "DL3007",
    ),
    "machine with an old driver": (
        "plumbline/schema/machines.toml", lambda text: text.replace('"580"', '"570"', 1), "older than",
    ),
    "unquoted variable": (
        "infra/lock.sh", lambda text: text + "\nrm -rf $1/$(date)\n", "SC2",
    ),
}  # fmt: skip
"""By error: a file, its change, and a word of the finding."""


def undetected(tools: Path) -> Iterator[str]:
    """Plant each error in a copy; yield the errors that no check finds."""
    for name, (path, plant, word) in PLANTED.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            skipped = shutil.ignore_patterns("node_modules", "__pycache__")
            for part in ("infra", "deployments", ".github", "examples", "locks", "plumbline/schema"):
                shutil.copytree(ROOT / part, copy / part, ignore=skipped)
            text = (copy / path).read_text("utf-8")
            if plant(text) == text:
                yield f"{name}: could not be planted in {path}"
                continue
            (copy / path).write_text(plant(text), "utf-8")
            if not any(word in finding for finding in findings(copy, tools)):
                yield f"{name}: planted in {path}, and not found"


def _files(root: Path, *patterns: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))


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
    """Print the findings; return 1 if there is one."""
    tools = Path(sys.argv[1]).resolve()
    faults = [*findings(ROOT, tools), *undetected(tools)]
    for fault in faults:
        print(fault)  # noqa: T201 - a program
    if not faults:
        print(f"infra: no finding; each of {len(PLANTED)} planted errors was found")  # noqa: T201
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
