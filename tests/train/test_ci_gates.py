"""CI templates and the Action, executed in a team's scratch repository as each CI runs their steps, from the wheel.

The links in `PYTHONPATH` stand for packages that the lock of a controller would download; pip checks them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.own_wheel import build_wheel, packages_here
from tests.train.test_upgrade import SUITE
from tests.train.wheels import plant

pytestmark = [pytest.mark.long, pytest.mark.git]

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / "deployments" / "ci"
EXPRESSION = re.compile(r"\$\{\{ *([^}]+?) *\}\}")
GH = """#!/bin/sh
[ "$PULL_REQUEST" = 7 ] || exit 1
for last; do :; done
posted="$RUNNER_TEMP/posted.md"
case "$*" in
  *--paginate*) [ ! -f "$posted" ] || [ "$(head -n 1 "$posted")" != "$MARK" ] || echo 4711 ;;
  *comments/4711*) cp "${last#body=@}" "$posted"; echo >> "$RUNNER_TEMP/written_anew" ;;
  *) cp "$last" "$posted" ;;
esac
"""
"""Stands for GitHub's program: keeps the comment that it would post, and finds it again by its first line."""
NOWHERE = "--pip=--index-url=http://127.0.0.1:9/simple --pip=--retries=0"


@dataclass
class Team:
    """Scratch repository of a team, with its own lock, and what a runner has."""

    folder: Path
    wheel: Path
    packages: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def lock(self, **versions: str) -> str:
        """Return a lock of planted packages, with the hashes of their wheels."""
        lines = []
        for name, version in versions.items():
            wheel = self.folder / "wheels" / f"planted_{name}-{version}-py3-none-any.whl"
            lines.append(f"planted-{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
        return "".join(lines)

    def script(self, text: str, shell: tuple[str, ...], **more: str) -> subprocess.CompletedProcess[str]:
        """Run a step's script as the CI does: a file, a shell, a clean environment."""
        path = self.folder / "step.sh"
        path.write_text(text, "utf-8")
        own = {
            "HOME": str(self.folder / "home"), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.packages), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "OMP_NUM_THREADS": "1",
            "PIP_CONFIG_FILE": os.devnull,
        }  # fmt: skip
        return subprocess.run(
            [*shell, str(path)], cwd=self.repository, env={**own, **self.environment, **more},
            capture_output=True, text=True, timeout=1000, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages_here(tmp_path_factory.mktemp("links") / "packages")


@pytest.fixture
def team(tmp_path: Path, wheel: Path, links: Path) -> Team:
    """Return a repository whose base branch has a suite and a lock, and a remote `origin`."""
    team = Team(tmp_path, wheel, links)
    plant(tmp_path)
    for folder in ("bin", "home", "repository", "temp"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "bin" / "gh").write_text(GH, "utf-8")
    (tmp_path / "bin" / "gh").chmod(0o755)
    (team.repository / "suite.toml").write_text(SUITE, "utf-8")
    (team.repository / "requirements.txt").write_text(team.lock(words="1.0", idle="1.0"), "utf-8")
    git = ("git", "-c", "user.name=Team", "-c", "user.email=team@example.org", "-C", str(team.repository))
    subprocess.run([*git, "init", "--quiet", "--initial-branch=main"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message=base"], check=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", str(team.repository), str(tmp_path / "origin")], check=True)
    subprocess.run([*git, "remote", "add", "origin", str(tmp_path / "origin")], check=True)
    return team


class Action:
    """The steps of `action.yml`, as GitHub runs a composite action."""

    SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")

    def __init__(self, team: Team, number: str = "7", **inputs: str) -> None:
        content = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
        given = {name: about["default"] for name, about in content["inputs"].items()}
        assert inputs.keys() <= given.keys()
        self.team, self.outputs, self.log = team, {}, ""
        self.values = {f"inputs.{name}": text for name, text in {**given, **inputs}.items()}
        about = {"github.token": "token", "github.repository": "team/model", "github.event.pull_request.number": number}
        self.values |= about
        self.temp = team.folder / "temp"
        for name in ("output", "summary"):
            (self.temp / name).write_text("", "utf-8")
        self.code = self._run(content["runs"]["steps"])

    def _run(self, steps: list[dict[str, Any]]) -> int:
        for step in steps:
            if (condition := step.get("if")) and not self._holds(condition):
                continue
            assert "${{" not in step["run"]
            done = self.team.script(
                step["run"], self.SHELL, RUNNER_TEMP=str(self.temp), GITHUB_OUTPUT=str(self.temp / "output"),
                GITHUB_STEP_SUMMARY=str(self.temp / "summary"), GITHUB_ACTION_PATH=str(ROOT),
                **{name: EXPRESSION.sub(lambda match: self.values[match[1]], text)
                   for name, text in step.get("env", {}).items()},
            )  # fmt: skip
            self.log += done.stdout + done.stderr
            for line in (self.temp / "output").read_text("utf-8").splitlines():
                name, _, value = line.partition("=")
                self.values[f"steps.{step.get('id')}.outputs.{name}"] = value
            if done.returncode:
                return done.returncode
        return 0

    def _holds(self, condition: str) -> bool:
        name, _, wanted = condition.partition(" == ")
        return self.values[name] == wanted.strip("'")

    @property
    def comment(self) -> str:
        return (self.temp / "posted.md").read_text("utf-8")


LOCKS = {
    "pass": ({"words": "1.0", "idle": "2.0"}, "", 0, "training is the same"),
    "drift": ({"words": "2.0", "idle": "2.0"}, "", 1, "planted-words 1.0 → 2.0 changes precision"),
    "inconclusive": ({"words": "2.0", "idle": "2.0"}, NOWHERE, 3, "no index has it"),
}
"""By what a pull request's lock leads to: its versions, how pip finds them, the exit code, and words of the answer."""


@pytest.mark.parametrize("outcome", LOCKS)
def test_the_action_judges_a_pull_request_s_lock(team: Team, outcome: str) -> None:
    versions, where, code, words = LOCKS[outcome]
    (team.repository / "pull-request").mkdir()
    (team.repository / "pull-request" / "requirements.txt").write_text(team.lock(**versions), "utf-8")
    inputs = {
        "python": str(team.folder / "team"), "current": "requirements.txt",
        "candidate": "pull-request/requirements.txt", "comment": "true", "plumbline": str(team.wheel),
        "arguments": where or f"--pip=--no-index --pip=--find-links={team.folder / 'wheels'}",
    }  # fmt: skip
    done = Action(team, **inputs)
    assert done.code == code, done.log
    assert words in done.comment, done.log
    said = {0: "pass", 1: "::error title=Plumbline::drift", 3: "::error title=Plumbline::inconclusive"}[code]
    assert said in done.log


SERIES = {
    "pass": (24, 0, "1 of 1 series passed"),
    "drift": (30, 1, "step since 2026-10-25"),
    "inconclusive": (3, 3, ""),
}
"""Rows of the example, the exit code, and words of the summary."""


@pytest.mark.parametrize("outcome", SERIES)
def test_the_action_judges_a_series(team: Team, outcome: str) -> None:
    rows, code, words = SERIES[outcome]
    lines = (ROOT / "examples" / "speed.csv").read_text("utf-8").splitlines()[: rows + 1]
    (team.repository / "speed.csv").write_text("\n".join(lines) + "\n", "utf-8")
    done = Action(team, series="speed.csv", comment="true", plumbline=str(team.wheel))
    assert done.code == code, done.log
    assert words in done.comment
    if outcome == "inconclusive":
        again = {"series": "speed.csv", "inconclusive": "warn", "comment": "true", "plumbline": str(team.wheel)}
        warned = Action(team, **again)
        assert (warned.code, "::warning title=Plumbline::inconclusive" in warned.log) == (0, True), warned.log
        assert (team.folder / "temp" / "written_anew").is_file()
        # A fork's token may not write, and a push has no pull request: the verdict stands without a comment.
        without = Action(team, number="", **again)
        assert (without.code, "::warning title=Plumbline::no comment" in without.log) == (0, True), without.log


def test_the_action_takes_arguments_line_by_line_and_refuses_to_judge_two_things_in_one_step(team: Team) -> None:
    (team.repository / "speed.csv").write_bytes((ROOT / "examples" / "speed.csv").read_bytes())
    done = Action(team, series="speed.csv", arguments="--last\nnone\n", plumbline=str(team.wheel))
    assert (done.code, "--last" in done.log) == (2, True), done.log
    both = Action(team, series="speed.csv", candidate="requirements.txt", plumbline=str(team.wheel))
    assert (both.code, "a step judges one of them" in both.log) == (2, True), both.log


def test_the_action_ends_with_one_line_for_a_lock_that_is_not_there(team: Team) -> None:
    done = Action(team, candidate="none.txt", current="requirements.txt", comment="true", plumbline=str(team.wheel))
    assert (done.code, "none.txt" in done.comment, "::error title=Plumbline::no verdict" in done.log) == (2, True, True)
    assert "Traceback" not in done.log


def gitlab() -> tuple[str, dict[str, str]]:
    """Return the script of GitLab's job, which runs in one shell, and its variables."""
    job = yaml.safe_load((CI / "gitlab-ci.yml").read_text("utf-8"))["plumbline-upgrade"]
    return "\n".join(job["script"]), {name: str(value) for name, value in job["variables"].items()}


def jenkins() -> tuple[str, dict[str, str]]:
    """Return the shell steps of the Jenkinsfile, which run in a shell each, and its variables.

    The first one decides whether the gate runs: where the lock is the target branch's, it ends with 0, and the gate is
    left out.
    """
    text = (CI / "Jenkinsfile").read_text("utf-8")
    when, *scripts = re.findall(r"'''(.*?)'''", text, re.DOTALL)
    assert len(scripts) + 1 == text.count("sh '''") + text.count("script: '''")
    variables = dict(re.findall(r"^ +([A-Z_]+) = '([^']*)'", text, re.MULTILINE))
    scripts.insert(0, f"if sh -c '{when}'; then echo \"left out\"; fi")
    return "\n".join(f"(set -e\n{script}\n) || exit $?" for script in scripts), variables


@pytest.mark.parametrize("ci", [gitlab, jenkins], ids=lambda ci: ci.__name__)
@pytest.mark.parametrize("outcome", ["equal", "inconclusive"])  # what trains is the Action's, by the same command
def test_a_template_s_script_ends_with_the_gate_s_exit_code(team: Team, ci: Any, outcome: str) -> None:
    script, variables = ci()
    versions, where, code, words = LOCKS.get(outcome, ({"words": "1.0", "idle": "1.0"}, "", 0, "pass"))
    (team.repository / "requirements.txt").write_text(team.lock(**versions), "utf-8")
    subprocess.run(
        ["git", "-c", "user.name=Team", "-c", "user.email=team@example.org", "-C", str(team.repository), "commit",
         "--quiet", "--allow-empty", "--all", "--message=change"], check=True,
    )  # fmt: skip
    image = team.folder / "image"  # a container's own Python
    subprocess.run([str(team.folder / "bin" / "python"), "-m", "venv", str(image)], check=True)
    own = f"--pip=--no-index --pip=--find-links={team.folder / 'wheels'}"
    values = {
        **variables, "PLUMBLINE": str(team.wheel), "CI_PROJECT_DIR": str(team.repository),
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CHANGE_TARGET": "main", "GOOGLE_AUDIENCE": "//audience",
        "GOOGLE_SERVICE_ACCOUNT": "robot", "AWS_TOKEN": "a", "AZURE_TOKEN": "b", "GOOGLE_TOKEN": "c",
        "WHERE": f"--python {team.folder / 'team'} --current requirements.txt {where or own}",
        "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_API_KEY": "key",
        "PATH": f"{image / 'bin'}:{os.environ['PATH']}",
    }  # fmt: skip
    done = team.script(script, ("bash", "-eo", "pipefail"), **values)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("left out" in done.stdout) == (ci is jenkins and outcome == "equal")
    assert words in json.dumps(json.loads((team.repository / "upgrade.json").read_text("utf-8")), ensure_ascii=False)
    assert (team.repository / "junit.xml").is_file() == (code == 0)  # without a verdict, there is no case
