"""What the gate's tests share: changes, and a machine that answers trials from rules."""

from __future__ import annotations

from plumbline.environments.changes import Failure, PackageChange
from plumbline.environments.locks import Pin
from plumbline.schema.verdict import Cause, Divergence, Judgement
from plumbline.upgrade.answer import Package, TrialResult


def change(name, current="1.0", candidate="2.0"):
    def pin(version):
        return None if version is None else Pin(name=name, version=version)

    return PackageChange(package=name, current=pin(current), candidate=pin(candidate))


def changes(count):
    return tuple(change(f"p{number:03d}") for number in range(count))


def drift(code="operator", stage="forward", step=0, at="encoder.layer.0.intermediate"):
    cause = Cause(code=code, sure="likely", why="test")
    place = Divergence(stage=stage, step=step, at=at)
    return Judgement(verdict="drift", causes=(cause,), first_divergence=place)


class Machine:
    """Answers trials by `rules`: part to a function from the names of the changes to an outcome."""

    def __init__(self, rules=None, *, opened=None, packages=None, ratios=None, memory=None, failures=()):
        self.rules = rules or {}
        self.opened = opened
        self.packages = packages or {}
        self.ratios = ratios
        self.memory = memory
        self.failures = failures
        self.asked = []

    def run(self, trial):
        self.asked.append(trial)
        return self.answer(trial)

    def answer(self, trial):
        names = {one.package for one in trial.changes}
        if trial.part == "environment":
            packages = tuple(self.packages.get(name, Package(package=name)) for name in sorted(names))
            outcome = "cannot-install" if self.failures else "same"
            return TrialResult(trial=trial.name, outcome=outcome, failures=self.failures, packages=packages)
        opened = tuple(sorted(self.opened)) if self.opened is not None else tuple(sorted(names))
        if trial.part == "reference":
            everything = tuple(one.package for one in self.asked[0].changes)
            return TrialResult(trial=trial.name, outcome="same", opened=everything if self.opened is None else opened)
        if trial.part == "speed":
            memory = {"host memory": tuple(self.memory(names, trial.pairs))} if self.memory else {}
            ratios = tuple(self.ratios(names, trial.pairs))
            return TrialResult(trial=trial.name, outcome="same", log_ratios=ratios, memory_ratios=memory)
        outcome = self.rules.get(trial.part, lambda _: "same")(names)
        failures = (Failure(stage="import", message="boom"),) if outcome == "cannot-train" else ()
        judgement = drift() if outcome == "drift" else Judgement(verdict="pass")
        return TrialResult(
            trial=trial.name, outcome=outcome, judgement=None if failures else judgement, failures=failures,
            opened=opened,
        )  # fmt: skip
