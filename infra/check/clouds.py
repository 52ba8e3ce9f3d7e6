# ruff: noqa: E501 - values and messages on one line
"""Execution of the modules by the engine: each case applied, planned again and destroyed, and AWS's on moto's server."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine import Applied, Engine, EngineError
from moto_aws import REGION, serve_aws
from resolved import check_resolved

from plumbline.night.doctor.conformance import examine_conformance
from plumbline.night.machines import open_group

Values = dict[str, Any]
_DIGEST = f"@sha256:{'1' * 64}"
_EXISTING = {"endpoint": "https://203.0.113.9", "certificate": "PEM", "issuer": "oidc.example/1"}
_SERVER: Values = {"domain": None, "prefect_api_url": "https://prefect.example/api", "prefect_auth": "user:password"}
_SPOT = {"spot": True, "reservation": "kept"}
_CLOUD = "https://api.prefect.cloud/api/accounts/a/workspaces/w"
CASES: dict[str, Values] = {
    "tutorial": {},
    "switches": {
        "aws": {**_SPOT, "image": "own"}, "azure": {**_SPOT, "image": "/subscriptions/s/images/own"},
        "gcp": {**_SPOT, "compact": True}, "gcp_zones": ["us-central1-b", "us-central1-c"],
        "addresses": ["203.0.113.7"], "deletion_protection": False, "off_hour": 23, "registry_login": "reader:token",
    },
    "own Prefect": {**_SERVER, "prefect_api_url": _CLOUD},
    "own cluster": {**_SERVER, "cluster": _EXISTING},
    "without AWS": {"aws_region": None},
    "without Azure": {"azure_subscription": None},
    "without Google": {**_SERVER, "gcp_project": None, "gcp_zones": [], "cluster": _EXISTING},
}  # fmt: skip
"""Values beside those of the tutorial; a project without a quota answers nothing at all, in every case."""
REFUSED: dict[str, Values] = {
    "gcp_project: without it": {"gcp_project": None},
    "domain: makes a Prefect server": {"domain": None},
    "REGISTRY/NAME@sha256": {"worker_image": "ghcr.io/acme/plumbline-worker:v1"},
}
"""Values that end with this message before anything is made."""


def tutorial_values(root: Path) -> Values:
    """Return the values that the tutorial fills in."""
    page = (root / "docs/tutorials/clouds.md").read_text("utf-8")
    text = re.findall(r"^```hcl\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    values = dict(re.findall(r'^(\w+) += (".*?"|\[.*?\])', text, re.MULTILINE))
    read = {name: re.findall(r'"(.*?)"', value) for name, value in values.items()}
    plain = {name: found if values[name].startswith("[") else found[0] for name, found in read.items()}
    return {
        name: value.replace("@sha256:…", _DIGEST) if isinstance(value, str) else value for name, value in plain.items()
    }


def answer(engine: Engine) -> None:
    """Let the stub clouds answer as empty accounts do."""
    zones = {"locations": [f"{REGION}{letter}" for letter in "ab"], "instance_types": [], "location_types": []}
    engine.case.answers.clear()
    engine.case.answers.update(
        cluster_ca_certificate="c3R1Yg==", endpoint="203.0.113.9", region=REGION, aws_ec2_instance_type_offerings=zones,
    )  # fmt: skip
    engine.case.makers.clear()


def check_case(engine: Engine, root: Path, name: str, *, whole: bool) -> Iterator[tuple[Applied, list[str]]]:
    """Apply one case; yield the state and the findings. A `whole` check also plans again and destroys."""
    answer(engine)
    begun, applied, findings = time.monotonic(), Applied(), []
    try:
        with engine.folder(root) as folder:
            applied = engine.apply(folder, tutorial_values(root) | CASES[name])
            findings += [f"{name}: {finding}" for finding in check_resolved(applied)]
            if whole:
                engine.plan_again(folder)
                engine.destroy(folder)
                seconds = f"{time.monotonic() - begun:.1f} s"
                print(f"  {name}: {len(applied.resources)} resources, planned again, destroyed: {seconds}", flush=True)  # noqa: T201
    except EngineError as error:
        findings.append(f"{name}: engine: {error}")
    yield applied, findings


def check_refused(engine: Engine, root: Path) -> Iterator[str]:
    """Yield values that make no sense together, and are applied all the same."""
    for message, values in REFUSED.items():
        answer(engine)
        with engine.folder(root) as folder:
            try:
                engine.apply(folder, tutorial_values(root) | values)
                yield f"{sorted(values)}: was applied"
            except EngineError as error:
                if message not in str(error):
                    yield f"{sorted(values)}: engine: {error}"


def check_versions(engine: Engine, root: Path) -> Iterator[str]:
    """Yield required providers that are not of the version of their schema."""
    for path in sorted(root.glob("infra/*/versions.tf")):
        for name, version in re.findall(
            r'(\w+) = \{\s+source  = "[^"]+"\s+version = "~> ([\d.]+)"', path.read_text("utf-8")
        ):
            if version != engine.versions.get(name, "").rpartition(".")[0]:
                yield f"{path.relative_to(root)}: {name}: version: is not that of its schema ({engine.versions.get(name)})"


def check_on_moto(engine: Engine, root: Path) -> Iterator[str]:
    """Apply AWS's module onto moto's server; yield what the product's own group, store and doctor find there."""
    answer(engine)
    tutorial = tutorial_values(root)
    values: Values = {
        "name": tutorial["name"], "issuer": "container.googleapis.com/v1/cluster", "off_hour": 6, "secret": "A=b\n",
        "controller_subject": "system:serviceaccount:plumbline:plumbline-controller",
        "worker": {
            "image": tutorial["worker_image"], "prefect_api_url": "https://p/api", "work_pool": "aws-gpu",
            "idle_minutes": 30, "max_minutes": 360,
        },
    }  # fmt: skip
    with serve_aws() as (url, makers), engine.folder(root, "aws") as folder:
        engine.case.makers.update(makers)
        engine.case.answers["aws_ami"] = {"id": "ami-03cf127a", "image_id": "ami-03cf127a"}
        try:
            applied = engine.apply(folder, values)
        except EngineError as error:
            yield f"moto: engine: {error}"
            return
        platform = applied.outputs["platform"]
        known = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": REGION,
        }
        with patch.dict(os.environ, known):
            yield from (f"moto: {finding}" for finding in _use(platform))


def _use(platform: Mapping[str, str]) -> Iterator[str]:
    group = open_group(platform["machines"])
    sizes = [group.size()]
    for count in (1, 0):
        group.resize(count)
        sizes.append(group.size())
    if sizes != [0, 1, 0]:
        yield f"{platform['machines']}: has the sizes {sizes} instead of [0, 1, 0]"
    for result in examine_conformance(platform["outbox"]):
        if not result.well:
            yield f"{result.where}: {result.what}"
