"""`python -m drills.interpreters REFERENCE CANDIDATE`: one round whose platforms train in environments of a team's own.

Both are folders of environments without Prefect and without boto3, with different torch and transformers. The round
runs on stock Prefect as `plumbline run` starts it. A second round has a platform whose environment lacks torch. In a
third, the torch of one environment does not load, and that of the other is of another machine.
`--out FILE` keeps the transcript and the rounds' documents.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drills.transcript import LINES, expect, say
from plumbline.environments.interpreter import find_python, lock_of
from plumbline.schema.digest import digest_file

SUITE = Path(__file__).resolve().parents[1] / "deployments" / "suites" / "local-s3.toml"
WORKERS_OWN = ("prefect", "boto3", "plumbline-training")
_SECONDS = 1800
_ASK = f"""
import importlib.metadata, json
names = {{d.metadata["Name"].lower() for d in importlib.metadata.distributions()}}
print(json.dumps(sorted(names & {set(WORKERS_OWN)!r})))
"""


def write_suite(folder: Path, pythons: dict[str, Path]) -> Path:
    """Write the local suite with an environment for each platform, and fewer steps."""
    text = SUITE.read_text(encoding="utf-8").replace("steps = 120", "steps = 60").replace("every = 60", "every = 30")
    text = text.replace("file://.plumbline/central", f"file://{folder}/central").replace("_seconds = ", "_seconds = 1")
    for name, python in pythons.items():
        header = f"[platforms.{name}]\n"
        text = text.replace(header, f'{header}python = "{python}"\n')
    path = folder / "suite.toml"
    tomllib.loads(text)
    path.write_text(text, encoding="utf-8")
    return path


def run(folder: Path, pythons: dict[str, Path]) -> tuple[int, dict[str, Any], str]:
    """Run one round; return the exit code, its document, and its report."""
    folder.mkdir()
    suite = write_suite(folder, pythons)
    command = [sys.executable, "-m", "plumbline", "run", str(suite), "--state", str(folder / "state"), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if not done.stdout.strip():
        raise AssertionError(done.stderr[-2000:])
    document = json.loads(done.stdout)
    return done.returncode, document, rendered(folder, suite, document["round"], "text")


def rendered(folder: Path, suite: Path, round_id: str, kind: str) -> str:
    """Return a round's report in one format."""
    out = folder / f"report.{kind}"
    command = [sys.executable, "-m", "plumbline", "report", round_id, "--suite", str(suite), "--format", kind]
    subprocess.run([*command, "--out", str(out)], cwd=folder, capture_output=True, timeout=300, check=True)
    return out.read_text(encoding="utf-8")


def agreeing(folder: Path, reference: Path, candidate: Path) -> dict[str, Any]:
    """Two environments: a verdict, notes that say what differs, and both locks."""
    for environment in (reference, candidate):
        asked = [str(find_python(environment)), "-c", _ASK]
        held = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
        expect(held == [], f"{environment.name} has none of {', '.join(WORKERS_OWN)}")
    code, document, report = run(folder, {"aws-local": reference, "onprem-local": candidate})
    say(f"exit code {code}, verdict {document['verdict']}")
    expect(code == 0 and document["verdict"] == "pass", "the round passes")
    notes = document["platforms"]["onprem-local"].get("notes", [])
    codes = sorted({note["code"] for note in notes})
    expect(set(codes) >= {"portable", "rounding"}, f"notes: portable bits are equal, native ones round: {codes}")
    accused = [note["code"] for note in notes if note["code"] not in {"portable", "rounding", "untimed", "lock"}]
    say(f"other notes: {accused or 'none'}")
    page = rendered(folder, folder / "suite.toml", document["round"], "html")
    for environment in (reference, candidate):
        lock = lock_of(find_python(environment))
        digest = digest_file(lock)[:12] if lock else "no lock"
        expect(digest in page, f"the report names the lock of {environment.name}, {digest}")
    return {"exit_code": code, "document": document, "report": report.splitlines()}


def without_torch(folder: Path, reference: Path) -> dict[str, Any]:
    """One environment that cannot train: its platform says so in one line, and nobody else is accused."""
    folder.mkdir()
    empty = folder / "empty"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(empty)
    return refused(folder / "round", {"aws-local": reference, "onprem-local": empty}, ["torch: is not installed"])


def unfit(folder: Path, like: Path, machine: str) -> Path:
    """Return an environment whose torch has no library, and was built for `machine`."""
    python = find_python(like)
    subprocess.run([str(python), "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    places = (next((root / "lib").glob("python*")) / "site-packages" for root in (folder, python.parent.parent))
    site, whole = places
    for path in whole.iterdir():
        if not path.name.startswith("torch"):
            (site / path.name).symlink_to(path)
    (about,) = whole.glob("torch-*.dist-info")
    (site / about.name).mkdir()
    (site / about.name / "METADATA").write_bytes((about / "METADATA").read_bytes())
    (site / about.name / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: cp3-cp3-manylinux_2_28_{machine}\n")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("import torch._C\n")
    return folder


def broken(folder: Path, reference: Path) -> dict[str, Any]:
    """Two environments whose torch cannot be loaded: each platform says why."""
    folder.mkdir()
    pythons = {
        "aws-local": unfit(folder / "broken", reference, platform.machine()),
        "onprem-local": unfit(folder / "foreign", reference, "s390x"),
    }
    words = ["torch: cannot be loaded: No module named 'torch._C'", f"for s390x, this machine is {platform.machine()}"]
    return refused(folder / "round", pythons, words)


def refused(folder: Path, pythons: dict[str, Path], words: list[str]) -> dict[str, Any]:
    """Run a round of which the report has to say these words, and which ends with exit code 2."""
    code, document, report = run(folder, pythons)
    say(f"exit code {code}, verdict {document['verdict']}")
    said = " ".join(report.split())  # the text breaks a long line anywhere
    for text in words:
        expect(text in said, f"the report says {text!r}" if text in said else report[-600:])
    expect(code == 2, "the round neither passes nor accuses a training: it is misconfigured")
    return {"exit_code": code, "document": document, "report": report.splitlines()}


def main() -> int:
    """Run the rounds; return 1 if a statement does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--only", choices=("agreeing", "without torch", "broken torch"), help="one of the rounds")
    parser.add_argument("--out", type=Path, help="keep the rounds here, beside those of earlier calls")
    arguments = parser.parse_args()
    reference = arguments.reference
    rounds: dict[str, Callable[[Path], dict[str, Any]]] = {
        "agreeing": lambda folder: agreeing(folder, reference, arguments.candidate),
        "without torch": lambda folder: without_torch(folder, reference),
        "broken torch": lambda folder: broken(folder, reference),
    }
    found = json.loads(arguments.out.read_bytes()) if arguments.out and arguments.out.is_file() else {}
    has_failed = False
    for name in [arguments.only] if arguments.only else list(rounds):
        LINES.clear()
        result: dict[str, Any] = {}
        try:
            with tempfile.TemporaryDirectory(prefix="interpreters-") as folder:
                result = rounds[name](Path(folder) / "round")
        except AssertionError as error:
            say(f"FAILED: {error}")
            has_failed = True
        found[name] = {"transcript": list(LINES), **result}
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
