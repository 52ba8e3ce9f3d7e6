"""Round of three platforms with a wrong reference: accusations and cost."""

from __future__ import annotations

from plumbline.night.rounds.confirming import open_cases, wanted
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment, Round
from plumbline.records import LoadedRecord
from tests.unit.suites import round_of, suite_of

from .conftest import make_record, spec
from .made_records import old

NAMES = ("aws", "azure", "gcp")


def make_round() -> Round:
    return round_of(suite_of(*NAMES), spec())


def gathered(off: str) -> GatheredRecords:
    result = {}
    for name in NAMES:
        made = make_record(gradient_factor=1.25 if name == off else 1.0)
        record = made.record.replace(record_id=name, platform=name)
        result[Assignment(name, "w", MAIN)] = LoadedRecord(record, made.folder, made.arrays)
    return GatheredRecords(result)


def test_only_the_platform_that_is_off_drifts_and_gets_experiments() -> None:
    for off, against in (("aws", "azure"), ("gcp", "aws")):
        round_, results_found = make_round(), gathered(off)
        baselines = {"w": {name: old(name) for name in NAMES}}
        results = judge_harvest(round_, results_found, baselines, {}, {})
        assert {name: result.verdict for name, result in results["w"].items()} == {
            name: "drift" if name == off else "pass" for name in NAMES
        }
        (case,) = open_cases(round_, results_found, baselines, results)
        assert (case.platform, case.reference) == (off, against)
        assert {assignment.platform for _, _, assignment in wanted((case,))} == {off}
