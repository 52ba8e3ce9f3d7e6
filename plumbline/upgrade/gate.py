"""Gate that decides how an upgrade changes training.

It requests trials, and names the packages that cause an effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from plumbline.environments.changes import PackageChange
from plumbline.judge.rounds import merge
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, Outcome
from plumbline.upgrade.answer import UNTIMED, MemoryUse, Speed, Trial, TrialResult, Trials, UpgradeAnswer
from plumbline.upgrade.campaign import Campaign, Parts, SpentError, UpgradeOptions
from plumbline.upgrade.comparison import LEAST_PAIRS, memory_use, rounding_note, speed_of
from plumbline.upgrade.culprits import CulpritSearch, UnsteadyError
from plumbline.upgrade.report import constraint_lines, culprit_of
from plumbline.upgrade.search import Items, TrialAnswer, find_culprits

_FEW = 4
"""Fewer changes than this are searched in so few trials that making them shorter costs more than it saves."""


class UpgradeGate:
    """Judge of one upgrade, using trials on this machine or on workers."""

    def __init__(
        self, trials: Trials, gates: Gates, parts: Parts = Parts(),  # noqa: B008 - frozen
        options: UpgradeOptions = UpgradeOptions(), say: Callable[[str], None] = lambda _: None,  # noqa: B008 - as above
    ) -> None:  # fmt: skip
        self._trials = trials
        self._gates = gates
        self._parts = parts
        self._options = options
        self._say = say
        self._began = time.monotonic()

    def judge(self, changes: Sequence[PackageChange]) -> UpgradeAnswer:
        """Compare the candidate with the current environment, and name all culprits."""
        known = {change.package: change for change in changes}
        campaign = Campaign(self._trials, self._parts, self._options, self._say, known)
        built = campaign.ask(Trial(name="environment", changes=tuple(changes), part="environment"))
        if built.outcome == "cannot-install":
            return self._not_installed(campaign, built)
        if built.outcome != "same":
            raise InconclusiveError(_why(built), where="environment")
        campaign.packages = {package.package: package for package in built.packages}
        numerics = campaign.numerics
        reference = campaign.ask(Trial(name="reference", part="reference", probe=numerics.probe, learn=numerics.learn))
        if reference.outcome != "same":
            raise InconclusiveError(f"the current environment does not train: {_why(reference)}")
        campaign.progress.estimate(self._num_trainings, len(campaign.opened & known.keys()))
        try:
            return self._compared(campaign)
        except UnsteadyError as error:
            campaign.culprits.clear()
            campaign.notes.append("two trainings of the current environment differ: nothing can be said of an upgrade")
            return self._answer(campaign, "inconclusive", error.judgement)

    @property
    def _num_trainings(self) -> int:
        """Estimate how many trainings a comparison without any difference takes."""
        parts = self._parts
        return int(parts.probe or parts.learn) + int(parts.inputs) + 2 * LEAST_PAIRS * int(parts.speed)

    def _not_installed(self, campaign: Campaign, built: TrialResult) -> UpgradeAnswer:
        for failure in built.failures:
            if failure.package in campaign.changes:
                change = campaign.changes[failure.package]
                campaign.culprits.append(culprit_of("cannot-install", [change], failures=[failure]))
            else:
                campaign.notes.append(failure.message)
        return self._answer(campaign, "invalid")

    def _compared(self, campaign: Campaign) -> UpgradeAnswer:
        """Compare every requested part of the training.

        The changes of a culprit are left out of the later parts.
        """
        left: Items = tuple(campaign.changes)
        judgements: list[Judgement] = []
        if self._parts.probe or self._parts.learn:
            left = self._numerics(campaign, left, judgements)
        same, rounded = campaign.same, left
        if self._parts.inputs and left:
            left = self._inputs(campaign, left, judgements)
        is_timed = self._parts.speed and bool(left) and self._is_timed(campaign, left)
        speed = self._speed(campaign, left) if is_timed else None
        memory = self._memory(campaign, left) if speed is not None else ()
        judgement = merge(judgements) if judgements else None
        verdict = self._verdict(campaign, judgement, speed, memory)
        if same is not None and same.judgement is not None and (note := rounding_note(same.judgement)):
            rounders = " and ".join(map(str, self._rounders(campaign, rounded)))
            campaign.notes.append(note + (f"; because of {rounders}" if rounders else ""))
        return self._answer(campaign, verdict, judgement, speed).replace(memory=memory)

    def _numerics(self, campaign: Campaign, left: Items, judgements: list[Judgement]) -> Items:
        whole = campaign.numerics
        result = campaign.ask(whole, left)
        if result.outcome == "cannot-train":
            search = CulpritSearch(campaign, "cannot-train", whole, whole=result)
            left = search.run(left)
            if not left:
                return left
            result = search.result_of(left) or campaign.ask(whole, left)
        judgements += [result.judgement] if result.judgement is not None else []
        while result.outcome == "drift":
            shown, before = self._reduced(campaign, result, left), left
            search = CulpritSearch(campaign, "numerics", shown, whole=result)
            left = search.run(left)
            if shown == whole or left == before or not left:
                known = search.result_of(left) if shown == whole else None
                campaign.same = known if known is not None and known.outcome == "same" else None
                return left
            # A shorter trial does not show the culprits of what comes after its end.
            result = campaign.ask(whole, left)
        if result.outcome != "same":
            self._not_known(campaign, result)
        else:
            campaign.same = result
        return left

    def _rounders(self, campaign: Campaign, left: Items) -> list[PackageChange]:
        """Return the changes that alone change the probe's bits."""
        trial = campaign.numerics.replace(learn=not self._parts.probe)

        def ask(items: Items) -> TrialAnswer:
            result = campaign.ask(trial, items)
            return "unknown" if result.outcome != "same" else "passes" if result.has_equal_bits else "fails"

        ordered = sorted(left, key=lambda name: name not in campaign.opened)
        try:
            searched = find_culprits(
                ordered, ask, needs=campaign.needs, num_first=len(campaign.opened & set(left)),
                budget=campaign.options.trials - campaign.progress.num_trials,
            )  # fmt: skip
        except SpentError:
            return []
        is_known = searched.is_complete and searched.rest_answer == "passes"
        return [campaign.changes[name] for found in searched.culprits for name in found.items] if is_known else []

    def _is_timed(self, campaign: Campaign, left: Items) -> bool:
        """Return whether throughput must be compared at all.

        `torch.compile` opens packages that no other part does: one pair of trainings says which.
        """
        if campaign.culprits:
            campaign.notes.append("throughput and memory: the culprits above were not tried")
        if campaign.opened & set(left) or campaign.same is None or not campaign.same.has_equal_bits:
            return True
        pair = campaign.ask(Trial(name="x", part="speed", pairs=1), left)
        if pair.outcome != "same" or campaign.opened & set(left):
            return True
        campaign.notes.append(UNTIMED)
        return False

    def _inputs(self, campaign: Campaign, left: Items, judgements: list[Judgement]) -> Items:
        trial = Trial(name="x", part="inputs")
        result = campaign.ask(trial, left)
        judgements += [result.judgement] if result.judgement is not None else []
        if result.outcome == "drift":
            return CulpritSearch(campaign, "inputs", trial, whole=result).run(left)
        if result.outcome == "cannot-train":
            return CulpritSearch(campaign, "cannot-train", trial, whole=result).run(left)
        if result.outcome != "same":
            self._not_known(campaign, result)
        return left

    def _speed(self, campaign: Campaign, left: Items) -> Speed | None:
        limit = self._gates.throughput_drop
        drop, last = campaign.paired(left, slower_above=limit / 2, fast_below=limit)
        if last.outcome == "cannot-train":
            trial = Trial(name="x", part="speed", pairs=1)
            CulpritSearch(campaign, "cannot-train", trial, whole=last).run(left)
            return None
        if drop is None:
            self._not_known(campaign, last)
            return None
        if drop.outcome == "slower":
            trial = Trial(name="x", part="speed")
            CulpritSearch(campaign, "speed", trial, drop=drop).run(left)
        return speed_of(drop)

    def _memory(self, campaign: Campaign, left: Items) -> tuple[MemoryUse, ...]:
        """Compare peak memory in the same pairs as throughput."""
        limit = self._gates.throughput_drop
        uses = []
        for measure in campaign.memories(left):
            drop, last = campaign.paired(left, slower_above=limit / 2, fast_below=limit, measure=measure)
            if drop is None:
                self._not_known(campaign, last)
                continue
            if drop.outcome == "slower":
                CulpritSearch(campaign, "memory", Trial(name="x", part="speed"), drop=drop).run(left)
            uses.append(memory_use(drop, measure))
        return tuple(uses)

    def _reduced(self, campaign: Campaign, result: TrialResult, left: Items) -> Trial:
        """Return a shorter trial that still shows the drift, if any.

        It trains only the steps or the part that drifted. If it does not pay or does not drift, return the whole trial.
        """
        reduced = self._first_steps(campaign, result)
        if reduced == campaign.numerics or len(left) < _FEW:
            return campaign.numerics
        return reduced if campaign.ask(reduced, left).outcome == "drift" else campaign.numerics

    def _first_steps(self, campaign: Campaign, result: TrialResult) -> Trial:
        at = result.judgement.first_divergence if result.judgement else None
        if at is not None and at.part == "learn":
            # After a probe of equal bits the curve alone decides; otherwise the probe says what rounding does.
            return Trial(name="x", part="numerics", probe=self._parts.probe and not result.has_equal_bits)
        if at is not None and at.step is not None and at.stage != "evaluation":
            return Trial(name="x", part="numerics", learn=False, steps=at.step + 1)
        return campaign.numerics

    def _not_known(self, campaign: Campaign, result: TrialResult) -> None:
        campaign.is_unknown = True
        campaign.notes.append(_why(result))

    def _verdict(
        self, campaign: Campaign, judgement: Judgement | None, speed: Speed | None, memory: Sequence[MemoryUse]
    ) -> Outcome:
        if campaign.culprits or not campaign.is_complete:
            return "drift"
        if judgement is not None and judgement.verdict != "pass":
            return judgement.verdict
        if speed is not None and speed.outcome == "undecided":
            campaign.notes.append(f"{speed.num_pairs} pairs do not decide whether the candidate is slower")
            return "inconclusive"
        for use in memory:
            if use.outcome == "undecided":
                campaign.notes.append(
                    f"{use.num_pairs} pairs do not decide whether the candidate needs more {use.kind}"
                )
                return "inconclusive"
        return "inconclusive" if campaign.is_unknown else "pass"

    def _answer(
        self, campaign: Campaign, verdict: Outcome, judgement: Judgement | None = None, speed: Speed | None = None
    ) -> UpgradeAnswer:
        is_built = bool(campaign.packages)
        return UpgradeAnswer(
            verdict=verdict,
            changes=tuple(campaign.changes.values()),
            not_opened=tuple(name for name in sorted(campaign.changes) if is_built and name not in campaign.opened),
            culprits=tuple(campaign.culprits),
            constraints=constraint_lines(campaign.culprits),
            findings=judgement.findings if judgement else (),
            first_divergence=judgement.first_divergence if judgement else None,
            causes=judgement.causes if judgement else (),
            speed=speed,
            is_flaky=campaign.is_flaky,
            notes=tuple(campaign.notes),
            trials=campaign.progress.lines,
            seconds=time.monotonic() - self._began,
        )


def _why(result: TrialResult) -> str:
    return "; ".join(failure.message for failure in result.failures) or f"{result.trial}: {result.outcome}"
