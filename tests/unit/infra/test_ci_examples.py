"""Workflows and CI examples: pinned actions, few permissions, and commands as they are."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from plumbline.cli.main import build_parser
from plumbline.flows.commands import doctor, upgrade

ROOT = Path(__file__).resolve().parents[3]
CI = ROOT / "deployments" / "ci"
WORKFLOWS = [
    CI / "github-actions.yml",
    CI / "pull-request.yml",
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
]
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
OWN = "OWNER/plumbline@COMMIT"
"""This project's Action, in capitals what a team replaces."""


def steps_of(path):
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_pin_their_actions_and_ask_for_few_permissions(path):
    content = yaml.safe_load(path.read_text())
    used = [step["uses"] for step in steps_of(path) if step.get("uses", OWN) != OWN]
    assert used
    assert all(PINNED.fullmatch(name) for name in used), used
    # Beside a digest, people read the release that it is of.
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40} # v[\d.]+$", path.read_text(), re.MULTILINE)) == len(used)
    assert set(content["permissions"].items()) <= {("contents", "read")}
    for job in content["jobs"].values():
        allowed = {("contents", "read"), ("id-token", "write")}
        published = {
            "actions/deploy-pages@": ("pages", "write"), "infra/images/push.sh": ("packages", "write"),
            "actions/attest-build-provenance@": ("attestations", "write"), OWN: ("pull-requests", "write"),
        }  # fmt: skip
        allowed |= {right for word, right in published.items() if word in str(job["steps"])}
        assert set(job.get("permissions", {}).items()) <= allowed
        assert job["timeout-minutes"] <= 300
    checkouts = [step for step in steps_of(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    # GitHub's default shell has no pipefail, and a pipe would hide a failure.
    piped = [step["run"] for step in steps_of(path) if re.search(r"[^|]\|[^|]", step.get("run", ""))]
    assert not piped or content["defaults"]["run"]["shell"] == "bash"
    # Expressions are text before they are shell: a branch's name must not become a command.
    assert not [step["run"] for step in steps_of(path) if "${{" in step.get("run", "")]


def scripts(name):
    """The commands of a CI example, each a shell script."""
    if name == "github-actions.yml":
        return [step["run"] for step in steps_of(CI / name) if "run" in step]
    return yaml.safe_load((CI / name).read_text())["plumbline-upgrade"]["script"]


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ci_examples_call_the_commands_as_they_are(name):
    modules = [doctor, upgrade]
    calls = []
    where = re.search(r"WHERE: (\S+)", (CI / name).read_text())[1]
    for script in (script.replace("$WHERE", where) for script in scripts(name)):
        assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20, check=False).returncode == 0
        lines = [line.removeprefix("exec ") for line in script.replace("\\\n", " ").splitlines()]
        calls += [re.split(r" (?:>|\|\|) ", line)[0] for line in lines if line.startswith("plumbline ")]
    parsed = [build_parser(modules).parse_args(shlex.split(call)[1:]) for call in calls]
    (gate,) = [args for args in parsed if hasattr(args, "candidate")]
    assert (gate.api, gate.json) == (True, True)
    # The lock is the pull request's; suite and code are not.
    assert str(gate.candidate).split("/")[0] in ("pull-request", ".tokens")
    assert str(gate.suite) == "$SUITE"
    # From the wheel that the team names, and from the lock in it: nothing of this repository, and no name of an index.
    installs = [
        line.split("--quiet ")[1] for script in scripts(name) for line in script.splitlines() if "pip install" in line
    ]
    assert installs == ['--no-deps "$PLUMBLINE"', '--require-hashes -r "$locks/controller.txt"']


def test_the_ci_examples_fail_for_a_fork():
    """A job that is left out counts as passed, on GitHub, and where it is the only one that is left out, on GitLab."""
    job = yaml.safe_load((CI / "github-actions.yml").read_text())["jobs"]["upgrade"]
    first = job["steps"][0]
    assert "if" not in job
    assert first["if"] == "github.event.pull_request.head.repo.full_name != github.repository"
    script = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["plumbline-upgrade"]["script"][0]
    projects = {"CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "8", "CI_PROJECT_ID": "7"}
    for text, environment, code in (
        (first["run"], {}, 3),
        (script, projects, 3),
        (script, {**projects, "CI_PROJECT_ID": "8"}, 0),
    ):
        done = subprocess.run(["sh", "-ec", text], env=environment, capture_output=True, timeout=20, check=False)
        assert (done.returncode, b"not judged" in done.stdout) == (code, code == 3)


def test_the_ci_examples_hand_the_pull_request_s_lock_to_the_gate():
    job = yaml.safe_load((CI / "github-actions.yml").read_text())["jobs"]["upgrade"]
    trusted, candidate = [step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
    assert trusted["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert (candidate["path"], candidate["sparse-checkout"], "ref" in candidate) == (
        "pull-request",
        "requirements.txt",
        False,
    )
    lines = yaml.safe_load((CI / "gitlab-ci.yml").read_text())["plumbline-upgrade"]["script"]
    order = [
        next(n for n, line in enumerate(lines) if line.startswith(word)) for word in ("cp ", "git checkout", "pip")
    ]
    assert order == sorted(order)


@pytest.mark.parametrize("name", ["github-actions.yml", "gitlab-ci.yml"])
def test_the_ci_examples_give_each_store_of_a_suite_of_three_clouds_a_credential(name):
    text = (CI / name).read_text()
    platforms = tomllib.loads((ROOT / "deployments/suites/cross-cloud.toml").read_text())["platforms"].values()
    schemes = {platform[key].split("://")[0] for platform in platforms for key in ("data", "outbox")}
    assert schemes == {"s3", "az", "gs"}
    if name == "github-actions.yml":
        logins = {step["uses"].split("@")[0] for step in steps_of(CI / name) if "uses" in step}
        assert {"aws-actions/configure-aws-credentials", "azure/login", "google-github-actions/auth"} <= logins
    else:
        job = yaml.safe_load(text)["plumbline-upgrade"]
        assert set(job["id_tokens"]) == {"AWS_TOKEN", "AZURE_TOKEN", "GOOGLE_TOKEN"}
        sdk = {"AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE", "GOOGLE_APPLICATION_CREDENTIALS"}
        assert sdk <= job["variables"].keys()
    assert not re.search(r"(ACCESS_KEY|CLIENT_SECRET|credentials_json)", text)


def test_every_template_says_what_a_ci_does_with_an_inconclusive_gate():
    for path in (ROOT / "action.yml", *(CI / name for name in ("github-actions.yml", "gitlab-ci.yml", "Jenkinsfile"))):
        assert re.search(r"(?i)inconclusive is\s+(//|#)?\s*no\s+(//|#)?\s*pass", path.read_text()), path


def test_the_action_runs_no_expression_as_shell_and_installs_no_name_of_an_index():
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    scripts = [step["run"] for step in action["runs"]["steps"]]
    assert not [script for script in scripts if "${{" in script]
    assert "plumbline-training" not in "".join(scripts)
    example = [step["with"] for step in steps_of(CI / "pull-request.yml") if step.get("uses") == OWN]
    assert len(example) == 2
    assert all(given.keys() <= action["inputs"].keys() for given in example)
