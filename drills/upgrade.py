"""`python -m drills.upgrade [--python ENV] [--out FILE]`: judge an upgrade on stock servers and two platforms.

An event with a lock starts the gate on both platforms; one platform installs a wheel that rounds the outputs of linear
layers. Then a command judges the same candidate, and the gate's process is killed during a trial. A third run is
cancelled during a trial. Built packages stay, and no incomplete package is used.

With `--python`, both platforms train in that environment of a team's own, which needs no Prefect: a command judges the
candidate there, and one platform's environment then lacks torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from importlib.metadata import version
from pathlib import Path

from prefect.events import emit_event
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from drills.transcript import LINES, expect, say, wait_until
from plumbline.data.stores import open_store
from plumbline.environments.interpreter import find_python, lock_of
from plumbline.night.central import CentralStore
from plumbline.night.deployment import UPGRADE_EVENT
from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.suite import Alert, Suite
from plumbline.upgrade.outcome import UpgradeOutcome, read_outcome
from tests.flows.local_stack import RunningStack, running_stack
from tests.flows.small_suite import small_suite
from tests.flows.webhook_server import Receiver, receiver
from tests.train.wheels import ROUNDED_LINEARS, make_wheel

__all__ = ["main"]

NAME = "drill-upgrade"
CULPRIT = "plumbline-test-hook absent → 2.0"
GATE, TRAINER = "plumbline.flows.upgrade.gate", "plumbline.train"
_SECONDS = 900


def current_lock(folder: Path, python: Path | None) -> Path:
    """Return the lock of a team's environment, or one of this environment's numpy."""
    lock = lock_of(find_python(python)) if python else None
    if lock is None:
        lock = folder / "current.txt"
        lock.write_text(f"numpy=={version('numpy')}\n")
    return lock


def suite_of(folder: Path, lock: Path, python: Path | None) -> Suite:
    """Return a suite of two platforms whose indexes differ in one wheel."""
    suite = small_suite(folder, NAME, ("onprem",), steps=2, retries=1)
    onprem = suite.platforms["onprem"].model_dump()
    platforms, local = {}, {}
    for name, code in (("first", "value = 2\n"), ("second", ROUNDED_LINEARS)):
        outbox = f"file://{folder}/{name}/outbox"
        platforms[name] = {**onprem, "work_pool": f"{NAME}-{name}-local", "outbox": outbox, "python": str(python or "")}
        wheels = folder / "wheels" / name
        hook = {"plumbline_test_hook.py": code, "plumbline_test_hook.pth": "import plumbline_test_hook\n"}
        make_wheel(wheels, "plumbline-test-hook", "2.0", hook)
        own = {"PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1", "PLUMBLINE_LOCK": "" if python else str(lock)}
        local[name] = {"environment": own}
    source = {"grammar_seed": 1, "train_rows": 64, "evaluation_rows": 16, "vocab_size": 512}
    return suite.replace(
        reference="first", platforms=platforms, local=local, datasets={"reviews": source},
        alerts=[Alert(on=("drift",), block="apprise-url/drill-upgrade", address_from="HOOK")],
    )  # fmt: skip


def event(stack: RunningStack, hook: Receiver, candidate: str) -> None:
    """An event whose payload carries the lock."""
    central = CentralStore(open_store(stack.suite.store))
    payload = {"lock": {"name": "candidate.txt", "text": candidate, "sha256": digest_bytes(candidate.encode())}}
    began = time.monotonic()
    with temporary_settings({PREFECT_API_URL: stack.stack.api_url, PREFECT_API_AUTH_STRING: stack.stack.login}):
        emit_event(UPGRADE_EVENT, resource={"prefect.resource.id": "plumbline.lock"}, payload=payload)

    def found() -> list[str]:
        keys = [info.key.split("/") for info in central.store.list("upgrades/")]
        return [parts[2] for parts in keys if parts[-1] == "upgrade.json"]

    wait_until(lambda: bool(found()), "the upgrade has an outcome", _SECONDS)
    outcome = read_outcome(central, stack.suite.name, found()[0])
    say(f"from the event to the outcome: {time.monotonic() - began:.0f} s")
    check(outcome)
    wait_until(lambda: bool(hook.got), "an alert has arrived")
    title, text = hook.got[0]["title"], hook.got[0]["message"]
    expect("drift of an upgrade on second" in title and CULPRIT in text, f"one alert: {title}")
    expect(len(hook.got) == 1, "no alert is sent about the other platform")


def check(outcome: UpgradeOutcome | None) -> None:
    """Check that the platform with the changed wheel drifts, and the other platform passes."""
    if outcome is None:
        raise AssertionError("no outcome")
    verdicts = {name: result.verdict for name, result in outcome.platforms.items()}
    expect(verdicts == {"first": "pass", "second": "drift"}, f"{outcome.verdict}: {verdicts}")
    answer = outcome.platforms["second"].answer
    culprits = answer.culprits if answer else ()
    named = [[str(change) for change in culprit.changes] for culprit in culprits]
    expect(named == [[CULPRIT]] and culprits[0].sure == "confirmed", culprits[0].sentence if culprits else "no culprit")


def command(stack: RunningStack, candidate: Path, suite: Suite | None = None) -> subprocess.Popen[str]:
    """Start `plumbline upgrade --api`, like a person or a CI job."""
    words = ["upgrade", str(stack.write_suite(suite or stack.suite)), "--candidate", str(candidate), "--api", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "plumbline", *words], env=stack.stack.environment(), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def of_a_team(stack: RunningStack, candidate: Path) -> None:
    """Judge the candidate in a team's own environment, then in one that lacks torch."""
    out, said = command(stack, candidate).communicate(timeout=_SECONDS)
    expect(bool(out), f"the command answers: {said.strip().splitlines()[-1]}")
    document = json.loads(out)
    outcome = UpgradeOutcome.model_validate({key: value for key, value in document.items() if key != "exit_code"})
    check(outcome)
    locks = {result.current_sha256 for result in outcome.platforms.values()}
    expect(len(locks) == 1 and "" not in locks, "both platforms name the lock of the team's environment")
    empty = stack.stack.state / "empty"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(empty)
    platforms = {name: {**one.model_dump(), "python": str(empty)} for name, one in stack.suite.platforms.items()}
    child = command(stack, candidate, stack.suite.replace(platforms=platforms))
    out, said = child.communicate(timeout=_SECONDS)
    whys = [platform["why"] for platform in json.loads(out)["platforms"].values()]
    expect(child.returncode == 2, f"without torch the exit code is {child.returncode}")
    expect(all(f"{empty}: torch: is not installed" in why for why in whys), f"each platform says: {whys[0]}")


def trainers(stack: RunningStack) -> list[int]:
    """Return the processes of trainings."""
    return stack.processes(f"-m {TRAINER} ")


def kept(stack: RunningStack) -> dict[str, int]:
    """Return the built packages by path, with the inode, which a rebuild changes."""
    found = {}
    for cache in sorted(stack.stack.state.rglob("upgrade/store")):
        found |= {str(path): path.stat().st_ino for path in cache.iterdir() if path.is_dir()}
    return found


def killed(stack: RunningStack, candidate: Path) -> None:
    """Kill the gate's processes while they train."""
    before = kept(stack)
    expect(
        len(before) == 2 and not any(".part" in path for path in before), f"each worker keeps a package: {len(before)}"
    )
    child = command(stack, candidate)
    wait_until(lambda: len(trainers(stack)) >= 1, "a training runs", _SECONDS)
    victims = stack.processes_in(GATE)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    say(f"{len(victims)} gates are killed with SIGKILL while {len(trainers(stack))} trainings run")
    out, said = child.communicate(timeout=_SECONDS)
    expect(
        child.returncode == 1,
        f"the command ends with exit code {child.returncode}: {said[-300:] if child.returncode != 1 else 'drift'}",
    )
    check(UpgradeOutcome.model_validate({key: value for key, value in json.loads(out).items() if key != "exit_code"}))
    expect(kept(stack) == before, "the packages are those from before the kill")


def cancelled(stack: RunningStack, candidate: Path) -> None:
    """Interrupt the command while the gates train."""
    before = kept(stack)
    child = command(stack, candidate)
    wait_until(lambda: len(trainers(stack)) >= 1, "a training runs", _SECONDS)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=_SECONDS)
    expect(child.returncode == 3, f"interrupted: exit code {child.returncode}, {said.strip().splitlines()[-1]}")
    wait_until(lambda: not trainers(stack) and not stack.processes_in(GATE), "no gate and no training is left", 120)
    expect(kept(stack) == before, "the packages still exist, and no incomplete package")


def main() -> None:
    """Run all drills in sequence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, help="environment of a team's own, in which both platforms train")
    parser.add_argument("--out", type=Path, help="keep the transcript in this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-drill-") as folder, receiver() as hook:
        state = Path(folder)
        os.environ["HOOK"] = hook.url
        lock = current_lock(state, args.python)
        suite = suite_of(state, lock, args.python)
        hashes = " ".join(f"--hash=sha256:{digest_file(path)}" for path in sorted(state.glob("wheels/*/*.whl")))
        text = f"{lock.read_text()}plumbline-test-hook==2.0 {hashes}\n"
        candidate = state / "candidate.txt"
        candidate.write_text(text)
        with running_stack(state, suite=suite) as stack:
            if args.python:
                of_a_team(stack, candidate)
            else:
                event(stack, hook, text)
                killed(stack, candidate)
                cancelled(stack, candidate)
    if args.out:
        args.out.write_text(json.dumps({"drill": "upgrade", "lines": LINES}, indent=1) + "\n", encoding="utf-8")
    print("passed")


if __name__ == "__main__":
    main()
