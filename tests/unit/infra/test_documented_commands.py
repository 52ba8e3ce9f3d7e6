"""Every documented command is checked here, run by a different test, or listed with the reason why no test runs it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from argparse import ArgumentParser

import pytest

from plumbline.cli import main as cli
from plumbline.localstack.services import worker_command
from tests.unit.infra.documented_commands import ROOT, Command, commands

# Of what no test here runs: the start of the command, and who runs it or why nobody does.
NOT_RUN_HERE = {
    "pip install --require-hashes": "tests/unit/infra/test_installation.py, with the oldest pip",
    "pip install -r locks/trainer.txt": "tests/unit/infra/test_installation.py, with the oldest pip",
    "pip install --no-deps": "tests/unit/infra/test_wheel.py, with the oldest pip",
    "prefect deployment run": "tests/flows/test_documented_commands.py, tests/flows/test_one_road.py",
    "prefect event emit": "tests/flows/test_documented_commands.py",
    "prefect work-pool": "tests/flows/test_documented_commands.py",
    "prefect server start": "every test with a local stack",
    "tofu ": "needs an account; its modules are checked by make infra-check",
    "aws ": "needs an account",
    "az ": "needs an account",
    "gcloud ": "needs an account",
    "kubectl ": "needs a cluster",
    "jq ": "needs jq; the path in the template is asserted in tests/unit/infra/test_job_template.py",
    "sudo ": "changes the machine; its files are checked in test_worker_machines.py",
    "printf ": "changes the machine, through sudo",
    'pip install ".[': "asks the package index; the extras are checked here",
    "docker build": "pulls a base image; what it copies and installs is checked in test_container_images.py",
    "pip freeze": "tests/unit/infra/test_tutorials.py",
    "grep ": "tests/unit/infra/test_tutorials.py",
    "sed ": "tests/unit/infra/test_tutorials.py",
    "seq ": "tests/unit/infra/test_tutorials.py",
    "pip install pre-commit": "installs a hook",
    "pre-commit install": "installs a hook",
    "pip index versions": "asks the package index",
    "uv pip install --dry-run": "asks the package index",
}

# Each command of Plumbline, and a test that runs it through the command line's own `main` or as a process.
RUN_BY = {
    "alert": "tests/flows/test_alerts.py",
    "baseline accept": "tests/unit/baseline/test_baseline.py",
    "baseline list": "tests/unit/baseline/test_baseline.py",
    "baseline log": "tests/unit/baseline/test_baseline.py",
    "baseline reject": "tests/unit/baseline/test_baseline.py",
    "baseline restore": "tests/unit/baseline/test_baseline.py",
    "baseline show": "tests/unit/baseline/test_baseline.py",
    "calibrate": "tests/unit/baseline/test_baseline.py",
    "compare": "tests/unit/report/test_cli.py",
    "cost": "tests/unit/rounds/test_night_cost.py",
    "completion": "tests/unit/cli/test_completion.py",
    "data build": "tests/unit/data/test_cli.py",
    "data import": "tests/unit/data/test_cli.py",
    "data push": "tests/unit/data/test_cli.py",
    "data verify": "tests/unit/data/test_cli.py",
    "deploy": "tests/flows/test_one_road.py",
    "doctor": "tests/flows/test_doctor.py",
    "explain": "tests/unit/cli/test_init.py",
    "export": "tests/unit/cli/test_export.py",
    "history": "tests/unit/baseline/test_baseline.py",
    "import": "tests/unit/report/test_cli.py",
    "init": "tests/unit/cli/test_init.py",
    "prune": "tests/unit/retention/test_retention.py",
    "report": "tests/unit/report/test_cli.py",
    "run": "tests/flows/test_one_road.py",
    "selfcheck": "tests/train/test_portable_leg.py",
    "site": "tests/unit/report/test_site.py",
    "spec": "tests/train/test_notebook.py",
    "train": "tests/train/test_cli.py",
    "upgrade": "tests/unit/upgrade/test_locks.py",
}

# Each target of make, program and drill, and where it runs: a test, or the raw results that its own run left. The test
# below fails for a documented one that is missing here, and for a file that does not exist.
PROGRAMS_RUN_BY = {
    "make run SUITE=deployments/suites/local-s3.toml": "the target runs in drills/newcomer.py; "
        "the suite is checked in tests/unit/localstack/test_suites.py",
    "make run TORCH=": "drills/newcomer.py runs the target; test_worker_machines.py has infra/install_torch.py",
    "make run": "drills/newcomer.py, bench/results/newcomer.json",
    "make test": "CI: .github/workflows/ci.yml",
    "make check": "its lint and its tests are those of make test: .github/workflows/ci.yml",
    "make docs": "tests/unit/infra/test_docs_site.py",
    "make drill": "bench/results/drill.json",
    "make faults": "tests/faults/test_subset.py, bench/results/faults.json",
    "make gpu": "tests/train/test_gpu_command.py on a CPU; bench/results/gpu needs a GPU",
    "make infra-check": "CI: .github/workflows/infra.yml",
    "make lock": "asks the package index; what it writes is checked in tests/unit/infra/test_installation.py",
    "make mutants": "bench/results/mutants.json",
    "make pages": "tests/report_browser/test_site.py, bench/results/report-pages.json",
    "make simulate": "bench/results/history-simulation.json",
    "make tables": "a sample of each table is tried in make test: .github/workflows/ci.yml",
    "make upgrade-bench": "bench/results/upgrade.json",
    "make versions": "bench/results/train-versions.json",
    "make .venv/detectors": "asks the package index; before bench/results/history-simulation.json",
    "make .venv/peers": "asks the package index; before bench/results/train-throughput.json",
    "python -m bench.faults.benign_pairs": "bench/results/benign-pairs.json",
    "python -m bench.faults.controls": "bench/results/controls.json",
    "python -m bench.faults": "tests/faults/test_subset.py, bench/results/faults.json",
    "python -m bench.gpu": "tests/train/test_gpu_command.py",
    "python -m bench.history.ablation": "bench/results/history-ablation.json",
    "python -m bench.history.change_points": "bench/results/history-changes.json",
    "python -m bench.history.labels": "bench/results/history-labels.json",
    "python -m bench.history.open_losses": "bench/results/history-open-losses.json",
    "python -m bench.history.real": "bench/results/history-real.json",
    "python -m bench.history.scale": "bench/results/history-scale.json",
    "python -m bench.history.simulate": "bench/results/history-simulation.json",
    "python -m bench.judge.fleet": "bench/results/fleet-judging.json",
    "python -m bench.judge.sentences": "bench/results/sentences.json",
    "python -m bench.train.evidence_cost": "bench/results/evidence-cost.json",
    "python -m bench.train.legs_cost": "its first run on a quiet machine is open: docs/BENCHMARKS.md",
    "python -m bench.upgrade.release_pairs": "bench/results/upgrade-release-pairs.json",
    "python -m bench.upgrade.search_releases": "bench/results/upgrade-search.json",
    "python -m bench.upgrade": "bench/results/upgrade.json",
    "python -m drills.alerts": "tests/flows/test_alerts.py has its rounds; the drill keeps no results",
    "python -m drills.interpreters": "bench/results/interpreters.json",
    "python -m drills.newcomer": "bench/results/newcomer.json",
    "python -m drills.tutorials": "bench/results/tutorials.json",
    "python -m drills.upgrade": "bench/results/upgrade-drill.json",
    "python -m drills": "bench/results/drill.json",
    "python -m plumbline.tasks.join_node": "tests/unit/infra/test_kubernetes.py",
    "python -m plumbline.train.weights": "tests/train/test_pieces.py",
    "python -m plumbline.train": "tests/train/test_cli.py",
    "python -m pytest": "CI: .github/workflows/ci.yml",
    "python bench/dispatch/first_step.py": "bench/results/databases.json",
    "python bench/dispatch/growth.py": "was not run to an end yet: docs/how-to/run-a-server.md says so",
    "python bench/staging/rates.py": "bench/results/staging-warm-quiet.json",
    "python bench/staging/gain.py": "bench/results/staging-gain.json",
    "python bench/train/endurance.py": "bench/results/train-endurance.json",
    "python bench/train/memory.py": "bench/results/train-memory.json",
    "python bench/train/portable_cost.py": "bench/results/portable-cost.json",
    "python bench/train/portable_faults.py": "bench/results/portable-faults.json",
    "python bench/train/portable.py": "bench/results/portable-settings.json",
    "python bench/train/probe.py": "bench/results/train-probe.json",
    "python bench/train/throughput.py": "bench/results/train-throughput.json",
    "python3 -m venv": "makes a folder; the installation in it is tests/unit/infra/test_installation.py",
    "source ": "a setting of the shell; drills/newcomer.py types it",
}  # fmt: skip

COMMANDS = commands()


def of(*programs: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] in programs]


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return cli.build_parser(cli._load(cli._loaders().values()))


def test_a_command_that_no_test_knows_is_found() -> None:
    others = [command for command in COMMANDS if command.words[0] != "plumbline" and not is_worker(command)]
    assert [str(command) for command in others if start_of(command) is None and not names_kept_results(command)] == []
    assert sorted((NOT_RUN_HERE | PROGRAMS_RUN_BY).keys() - {start_of(command) for command in others}) == []


def names_kept_results(command: Command) -> bool:
    return any(word.startswith("bench/results/") and (ROOT / word).exists() for word in command.words)


def start_of(command: Command) -> str | None:
    starts = [start for start in NOT_RUN_HERE | PROGRAMS_RUN_BY if command.text.startswith(start)]
    return max(starts, key=len, default=None)


def test_the_tests_and_results_of_the_other_commands_exist() -> None:
    reasons = (NOT_RUN_HERE | PROGRAMS_RUN_BY).values()
    named = {path for why in reasons for path in re.findall(r"[\w./-]+/[\w.-]+\.(?:py|json|md|yml)", why)}
    assert len(named) > 40
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def is_worker(command: Command) -> bool:
    return command.words[:3] == ("prefect", "worker", "start")


def test_a_documented_worker_starts_as_the_tests_start_theirs() -> None:
    started = worker_command("plumbline", "name", limit=None)
    for command in filter(is_worker, COMMANDS):
        pool = {command.words[index + 1] for index, word in enumerate(command.words) if word == "--pool"}
        assert set(command.words[1:]) - pool <= set(started), str(command)


@pytest.mark.parametrize("command", of("plumbline"), ids=str)
def test_plumbline_knows_its_documented_commands(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    name, *arguments = [word.strip("[]") for word in command.words[1:] if word != "..."]
    nested = arguments[:1] if name in ("data", "baseline") else []
    for part in nested[0].split("/") if nested else [""]:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([name, *filter(None, [part]), "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0
        assert shown.startswith(f"usage: plumbline {name} {part}".rstrip())
        options = {word for word in arguments if word.startswith("--")}
        assert options <= set(re.findall(r"--[\w-]+", shown))
    # A sentence may leave out what a command needs; a line to copy may not.
    if command.is_whole:
        parser.parse_args([name, *arguments])


def test_each_documented_command_of_plumbline_is_run_by_a_test() -> None:
    named = set()
    for command in of("plumbline"):
        name, *rest = (word.strip("[]") for word in command.words[1:])
        nested = rest[0].split("/") if name in ("data", "baseline") and rest and rest[0] != "..." else []
        named |= {f"{name} {part}" for part in nested} or {name}
    assert named == RUN_BY.keys()
    for name, path in RUN_BY.items():
        text = (ROOT / path).read_text("utf-8")
        assert [word for word in name.split() if f'"{word}"' not in text] == [], path


def test_a_documented_extra_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    documented = re.findall(
        r"^\| `(\w+)` \| .* \|$", (ROOT / "README.md").read_text("utf-8").split("| extra |")[1], re.MULTILINE
    )
    assert set(documented[: len(project["optional-dependencies"]) - 1]) == project["optional-dependencies"].keys() - {
        "dev"
    }
    asked = {
        name
        for command in of("pip")
        for extras in re.findall(r"\[([\w,]+)]", command.text)
        for name in extras.split(",")
    }
    assert asked
    assert asked <= set(documented)


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_make_knows_its_documented_targets(command: Command) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", of("python", "python3", "bash"), ids=str)
def test_documented_programs_exist_and_have_their_options(command: Command) -> None:
    words = [word.strip("[]") for word in command.words[1:]]
    if words[:2] == ["-m", "venv"]:
        return
    if words[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        return
    path = ROOT / (words[1].replace(".", "/") if words[0] == "-m" else words[0])
    sources = [path, path.with_suffix(".py"), *path.glob("*.py")]
    text = "".join(source.read_text("utf-8") for source in sources if source.is_file())
    assert "__main__" in text or (path / "__main__.py").is_file() or path.suffix == ".sh"
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == []
