"""The gate: asks for trials, and decides from their results what an upgrade does to training, and which package."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from plumbline.errors import InconclusiveError
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.answer import Culprit, Others, Speed, UpgradeAnswer
from plumbline.upgrade.bisect import Answer, Items, Search, find_culprits
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.progress import Progress
from plumbline.upgrade.sentences import constraint_lines, culprit_of
from plumbline.upgrade.throughput import LEAST_PAIRS, MOST_PAIRS, PairedDrop, paired_drop
from plumbline.upgrade.trials import Package, Part, Trial, TrialResult, Trials

__all__ = ["Budget", "Gate", "Parts"]

Effect = Literal["cannot-train", "inputs", "numerics", "speed"]
_FEW = 4
"""Fewer changes than this are searched in so few trials that making them shorter costs more than it saves."""
_FLAKY_LOOKS = 3
_FLAKY_REPEATS = 6
"""A pass of a flaky candidate counts after this many in a row: one that fails in half of its runs slips by in 1.6%."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the workload has to compare."""

    probe: bool = True
    learn: bool = True
    speed: bool = True
    inputs: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one gate spends."""

    trials: int = 200
    seconds: float = 24 * 3600.0


@dataclass
class _State:
    """What is known while the gate runs."""

    changes: dict[str, PackageChange]
    packages: dict[str, Package] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    culprits: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    repeats: int = 1
    is_flaky: bool = False
    is_complete: bool = True


class _UnsteadyError(Exception):
    """The current environment does not agree with itself."""

    def __init__(self, judgement: Judgement | None) -> None:
        super().__init__("unsteady")
        self.judgement = judgement


class Gate:
    """Judges one upgrade; `trials` may run here or on several workers."""

    def __init__(
        self, trials: Trials, gates: Gates, parts: Parts = Parts(), budget: Budget = Budget(),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._trials = trials
        self._gates = gates
        self._parts = parts
        self._budget = budget
        self._progress = Progress(say, budget.trials, budget.seconds)
        self._began = time.monotonic()
        self._say = say

    def judge(self, changes: Sequence[PackageChange]) -> UpgradeAnswer:
        """Compare the current environment with the candidate, and name every culprit of a difference."""
        state = _State({change.package: change for change in changes})
        built = self._ask(Trial(name="environment", changes=tuple(changes), part="environment"))
        if built.outcome == "cannot-install":
            state.culprits = [
                culprit_of("cannot-install", [state.changes[failure.package]], failures=[failure])
                for failure in built.failures
                if failure.package in state.changes
            ]
            state.notes += [failure.message for failure in built.failures if failure.package not in state.changes]
            return self._answer(state, "invalid")
        if built.outcome != "same":
            raise InconclusiveError(_why(built), where="environment")
        state.packages = {package.package: package for package in built.packages}
        reference = self._ask(Trial(name="reference", part="reference", **self._numerics()))
        if reference.outcome != "same":
            raise InconclusiveError(f"the current environment does not train: {_why(reference)}")
        state.imported |= set(reference.imported or ())
        if not any(self._is_relevant(state, name) for name in state.changes):
            state.notes.append("training loads code from none of the changed packages")
            return self._answer(state, "pass")
        try:
            return self._compared(state)
        except _UnsteadyError as error:
            state.culprits.clear()
            note = "two trainings of the current environment differ: nothing can be said of an upgrade"
            return self._answer(state, "inconclusive", error.judgement, [note])

    def _numerics(self) -> dict[str, bool]:
        return {"probe": self._parts.probe, "learn": self._parts.learn}

    def _is_relevant(self, state: _State, name: str) -> bool:
        """Return whether a change can reach training: its code is loaded, it is new, or Python runs it at start."""
        package = state.packages.get(name)
        is_new = state.changes[name].current is None
        return is_new or name in state.imported or (package is not None and package.has_startup_hook)

    def _compared(self, state: _State) -> UpgradeAnswer:
        """Compare part after part; the changes of a culprit are left out of what comes after it."""
        left = tuple(state.changes)
        judgement: Judgement | None = None
        numerics = self._trial("numerics", left, state) if self._parts.probe or self._parts.learn else None
        if numerics is not None:
            state.imported |= set(numerics.imported or ())
            judgement = numerics.judgement
            if numerics.outcome == "lost":
                return self._answer(state, "inconclusive", numerics.judgement, [_why(numerics)])
            if numerics.outcome == "cannot-train":
                whole_part = Trial(name="x", part="numerics", **self._numerics())
                left = self._bisected("cannot-train", left, state, whole_part, whole=numerics)
                after = self._trial("numerics", left, state) if left else None
                numerics = after or numerics
                judgement = numerics.judgement or judgement
            if numerics.outcome == "drift" and left:
                left = self._bisected("numerics", left, state, self._reduced(numerics, left, state), whole=numerics)
        inputs = self._inputs(left, state)
        judgement = _merged(judgement, inputs.judgement if inputs else None)
        speed = self._speed(left, state)
        return self._finished(state, judgement, inputs, speed)

    def _finished(
        self, state: _State, judgement: Judgement | None, inputs: TrialResult | None, speed: Speed | None
    ) -> UpgradeAnswer:
        if state.culprits or not state.is_complete:
            verdict = "drift"
        elif judgement is not None and judgement.verdict != "pass":
            verdict = judgement.verdict
        elif inputs is not None and inputs.outcome == "lost":
            verdict = "inconclusive"
            state.notes.append(_why(inputs))
        elif speed is not None and speed.outcome == "undecided":
            verdict = "inconclusive"
            state.notes.append(f"{speed.num_pairs} pairs do not decide whether the candidate is slower")
        else:
            verdict = "pass"
        return self._answer(state, verdict, judgement, speed=speed)

    def _inputs(self, left: Items, state: _State) -> TrialResult | None:
        if not self._parts.inputs or not left:
            return None
        result = self._trial("inputs", left, state)
        state.imported |= set(result.imported or ())
        if result.outcome in ("drift", "cannot-train"):
            effect: Effect = "inputs" if result.outcome == "drift" else "cannot-train"
            self._bisected(effect, left, state, Trial(name="x", part="inputs"), whole=result)
        return result

    def _check_reference(self, state: _State) -> None:
        """Raise `_UnsteadyError` unless a second training of the current environment agrees with the first."""
        own = self._trial("numerics", (), state)
        if own.outcome != "same":
            raise _UnsteadyError(own.judgement)

    def _is_flaky(self, items: Items, state: _State, trial: Trial) -> bool:
        """Return whether the candidate passes in one of a few repeats, after it drifted."""
        for _ in range(_FLAKY_LOOKS):
            if self._ask(self._named(trial, items, state)).outcome == "same":
                state.is_flaky, state.repeats = True, _FLAKY_REPEATS
                state.notes.append("the candidate drifts in some trainings and passes in others: trials are repeated")
                return True
        return False

    def _reduced(self, result: TrialResult, left: Items, state: _State) -> Trial:
        """Return a trial of the rung that drifted alone, where it pays and where the drift still shows."""
        whole = Trial(name="x", part="numerics", **self._numerics())
        reduced = self._first_steps(result)
        if reduced == whole or len(left) < _FEW:
            return whole
        shown = self._ask(self._named(reduced, left, state))
        return reduced if shown.outcome == "drift" else whole

    def _first_steps(self, result: TrialResult) -> Trial:
        at = result.judgement.first_divergence if result.judgement else None
        if at is not None and at.stage == "learn":
            # After a probe of equal bits the curve alone decides; otherwise the probe says what rounding does.
            return Trial(name="x", part="numerics", probe=self._parts.probe and not result.has_equal_bits)
        if at is not None and at.step is not None and at.stage != "evaluation":
            return Trial(name="x", part="numerics", learn=False, steps=at.step + 1)
        return Trial(name="x", part="numerics", **self._numerics())

    def _speed(self, left: Items, state: _State) -> Speed | None:
        """Compare throughput in pairs until the interval decides."""
        if not self._parts.speed or not left:
            return None
        limit = self._gates.throughput_drop
        drop = self._paired(left, state, slower_above=limit / 2, fast_below=limit)
        if drop is None:
            return None
        found = Speed(
            outcome=drop.outcome, drop=drop.drop, low=drop.low, high=drop.high, num_pairs=drop.num_pairs
        )  # fmt: skip
        if drop.outcome == "slower":
            # A culprit has the whole effect, all other changes have none: half of it divides them best.
            self._bisected("speed", left, state, Trial(name="x", part="speed"), effect_size=drop.drop)
        return found

    def _paired(self, items: Items, state: _State, *, slower_above: float, fast_below: float) -> PairedDrop | None:
        ratios: list[float] = []
        found: PairedDrop | None = None
        while len(ratios) < MOST_PAIRS:
            trial = Trial(name="x", part="speed", pairs=LEAST_PAIRS)
            result = self._ask(self._named(trial, items, state))
            if result.outcome != "same":
                return found
            ratios += result.log_ratios
            found = paired_drop(ratios, slower_above=slower_above, fast_below=fast_below)
            if found is not None and found.outcome != "undecided":
                return found
        return found

    def _bisected(
        self, effect: Effect, left: Items, state: _State, trial: Trial, *, whole: TrialResult | None = None,
        effect_size: float = 0.0,
    ) -> Items:  # fmt: skip
        """Name the culprits of one effect; return the changes that are left without them."""
        # Who can reach training stands first: if those alone show the effect, the others are never tried.
        ordered = tuple(sorted(left, key=lambda name: not self._is_relevant(state, name)))
        relevant = tuple(name for name in ordered if self._is_relevant(state, name))
        self._say(f"{effect}: searching {len(ordered)} changes, {len(relevant)} of which training loads")
        results: dict[Items, TrialResult] = {ordered: whole} if whole else {}
        drops: dict[Items, PairedDrop] = {}

        def ask(sets: Sequence[Items]) -> Mapping[Items, Answer]:
            if effect == "speed":
                return {items: self._speed_answer(items, state, effect_size, drops) for items in sets}
            return self._answers(sets, state, trial, effect, results)

        searched, items = self._search(ordered, relevant, ask, state)
        if effect == "numerics":
            if _is_doubtful(searched) and self._is_flaky(ordered, state, trial):
                results.clear()
                searched, items = self._search(ordered, relevant, ask, state)
            if not any(result.outcome == "same" for result in results.values()):
                # Nothing agreed with the current environment so far: it may not agree with itself.
                self._check_reference(state)
        for culprits in searched.culprits:
            together = tuple(sorted({*culprits.items, *culprits.companions}, key=ordered.index))
            result = next((one for key, one in results.items() if set(key) == set(together)), None)
            others = _others(searched, num_changes=len(ordered), num_searched=len(items))
            state.culprits.append(
                culprit_of(
                    effect, [state.changes[name] for name in culprits.items],
                    companions=[state.changes[name] for name in culprits.companions],
                    judgement=result.judgement if result else None, failures=list(result.failures) if result else [],
                    drop=drops[together].drop if together in drops else effect_size or None,
                    others=others, is_minimal=culprits.is_minimal,
                    links={
                        label: url for name in culprits.items if name in state.packages
                        for label, url in state.packages[name].links.items()
                    },
                )
            )  # fmt: skip
        state.is_complete = state.is_complete and searched.is_complete
        accused = {name for culprits in searched.culprits for name in culprits.items}
        needs = _needs(state)
        return tuple(name for name in left if not accused & _closure(name, needs))

    def _search(
        self, ordered: Items, relevant: Items, ask: Callable[[Sequence[Items]], Mapping[Items, Answer]], state: _State
    ) -> tuple[Search, Items]:
        """Search the changes that training loads; all of them where those alone do not show the effect."""
        options: dict[str, Any] = {
            "needs": _needs(state), "num_parallel": self._trials.num_parallel,
            "budget": max(1, self._budget.trials - self._progress.num_trials),
        }  # fmt: skip
        if relevant and len(relevant) < len(ordered) and ask([relevant])[relevant] == "fails":
            return find_culprits(relevant, ask, **options), relevant
        return find_culprits(ordered, ask, **options), ordered

    def _answers(
        self, sets: Sequence[Items], state: _State, trial: Trial, effect: Effect, results: dict[Items, TrialResult]
    ) -> dict[Items, Answer]:
        """Ask for several sets at once; one that passes is asked again where the candidate is flaky."""
        answers: dict[Items, Answer] = {}
        waiting = list(sets)
        for _ in range(state.repeats):
            trials = {items: self._named(trial, items, state) for items in waiting}
            asked = {one.name: items for items, one in trials.items()}
            for result in self._asked({one.name: one for one in trials.values()}):
                items = asked[result.trial]
                results[items] = result
                answers[items] = _answer_of(result, effect)
            waiting = [items for items in waiting if answers.get(items) == "passes"]
            if not waiting:
                break
        return answers

    def _speed_answer(self, items: Items, state: _State, effect_size: float, drops: dict[Items, PairedDrop]) -> Answer:
        half = effect_size / 2
        found = self._paired(items, state, slower_above=half, fast_below=half)
        if found is None or found.outcome == "undecided":
            return "unknown"
        drops[items] = found
        return "fails" if found.outcome == "slower" else "passes"

    def _trial(self, part: Part, items: Items, state: _State) -> TrialResult:
        extra = self._numerics() if part == "numerics" else {}
        return self._ask(self._named(Trial(name="x", part=part, **extra), items, state))

    def _named(self, trial: Trial, items: Items, state: _State) -> Trial:
        number = self._progress.next_number()
        changes = tuple(state.changes[name] for name in items)
        return trial.replace(name=f"trial-{number:03d}", changes=[change.model_dump() for change in changes])

    def _ask(self, trial: Trial) -> TrialResult:
        return self._asked({trial.name: trial})[0]

    def _asked(self, trials: Mapping[str, Trial]) -> list[TrialResult]:
        """Run trials, each of which has to be answered once."""
        self._progress.check()
        results = []
        for result in self._trials.run(tuple(trials.values())):
            self._progress.add(trials[result.trial], result)
            results.append(result)
        if {result.trial for result in results} != set(trials):
            raise InconclusiveError("a trial was not answered")
        return results

    def _answer(
        self, state: _State, verdict: str, judgement: Judgement | None = None, notes: Sequence[str] = (),
        *, speed: Speed | None = None,
    ) -> UpgradeAnswer:  # fmt: skip
        not_trained = [name for name in sorted(state.changes) if state.packages and not self._is_relevant(state, name)]
        return UpgradeAnswer.model_validate(
            {
                "verdict": verdict,
                "changes": tuple(state.changes.values()),
                "not_trained": not_trained,
                "culprits": tuple(state.culprits),
                "constraints": constraint_lines(state.culprits),
                "findings": judgement.findings if judgement else (),
                "first_divergence": judgement.first_divergence if judgement else None,
                "causes": judgement.causes if judgement else (),
                "speed": speed,
                "is_flaky": state.is_flaky,
                "notes": (*state.notes, *notes),
                "trials": self._progress.lines,
                "seconds": time.monotonic() - self._began,
            }
        )


def _others(searched: Search, *, num_changes: int, num_searched: int) -> Others:
    """Return what is known of the changes that are not accused."""
    if searched.rest_answer != "passes" or not searched.is_complete:
        return "not judged"
    if len(searched.culprits) > 1:
        return "other culprits"
    if not searched.rest:
        return "none" if num_searched == num_changes else "not loaded"
    return "pass" if num_searched == num_changes else "loaded pass"


def _is_doubtful(searched: Search) -> bool:
    """Return whether a culprit that drifts now and then explains the search better than what it found."""
    return searched.rest_answer != "passes" or any(
        len(culprits.items) > 1 or not culprits.is_minimal for culprits in searched.culprits
    )


def _answer_of(result: TrialResult, effect: Effect) -> Answer:
    if effect == "cannot-train":
        return {"cannot-train": "fails", "same": "passes", "drift": "passes"}.get(result.outcome, "unknown")  # type: ignore[return-value]
    return {"drift": "fails", "same": "passes"}.get(result.outcome, "unknown")  # type: ignore[return-value]


def _needs(state: _State) -> dict[str, frozenset[str]]:
    return {name: frozenset(package.needs) for name, package in state.packages.items()}


def _closure(name: str, needs: Mapping[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    queue = [name]
    while queue:
        item = queue.pop()
        if item not in found:
            found.add(item)
            queue += needs.get(item, ())
    return found


def _why(result: TrialResult) -> str:
    return "; ".join(failure.message for failure in result.failures) or f"{result.trial}: {result.outcome}"


def _merged(left: Judgement | None, right: Judgement | None) -> Judgement | None:
    from plumbline.judge.rounds import merge

    parts = [part for part in (left, right) if part is not None]
    return merge(parts) if parts else None
