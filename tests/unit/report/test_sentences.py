"""The table of sentences: complete, without dead entries, and safe with any value."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest

from plumbline.judge.history.metrics import METRICS
from plumbline.report.sentences import clean, sentence_of, spoken, templates
from plumbline.schema.fact import LIST, Fact, fact, joined
from plumbline.schema.stage import PROVEN
from plumbline.schema.verdict import Cause, CauseCode, Finding, Judgement, Sure

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def made_facts() -> dict[str, set[frozenset[str]]]:
    """Return by code the names of the values of each fact that the product makes."""
    made: dict[str, set[frozenset[str]]] = {}
    for path in sorted(file for folder in ("plumbline", "tasks", "flows") for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_fact = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fact"
            if is_fact and isinstance(node.args[0], ast.Constant):
                names = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
                made.setdefault(node.args[0].value, set()).add(names)
    return made


def placeholders(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name)


def test_each_fact_has_a_sentence_with_exactly_its_values() -> None:
    made = made_facts()
    assert len(made) > 300
    missing = sorted(made.keys() - templates().keys())
    assert missing == []
    wrong = {code: names for code, names in made.items() if names != {placeholders(templates()[code])}}
    assert wrong == {}


def test_each_sentence_belongs_to_a_fact() -> None:
    by_name = {
        "off.selfcheck",
        "off.precision",
        "off.stated",
        "data.changed-both",
        "data.changed-label",
        *(f"{subject}.{code}" for subject in ("because", "hint") for code in get_args(CauseCode)),
        *(f"metric.{metric.name}" for metric in METRICS),
        *(f"sure.{sure}" for sure in get_args(Sure)),
        *(f"proof.{stage}" for stage in PROVEN),
        *(f"windows.{stage}" for stage in ("forward", "loss", "gradient", "clipped", "optimizer", "evaluation")),
        *(f"windows.state-{event}" for event in ("checkpoint", "evaluation", "processes", "step")),
    }  # made for the code in a variable
    assert sorted(templates().keys() - made_facts().keys() - by_name) == []
    assert by_name <= templates().keys()


def test_numbers_are_rounded_in_the_sentence_alone() -> None:
    made = fact("forward.error", error=0.123456789, limit=1e-7)
    assert sentence_of(made) == "relative error 0.123, limit 1e-07"
    assert made.values["error"] == 0.123456789


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (None, "None"), ("x", "x")])
def test_a_value_that_is_no_number_is_shown_as_it_is(value: object, shown: str) -> None:
    made = Fact.model_validate_json(fact("forward.error", error=value, limit=1.0).model_dump_json())
    assert sentence_of(made) == f"relative error {shown}, limit 1"


def test_a_verdict_of_an_earlier_release_keeps_its_words_and_one_of_a_later_its_values() -> None:
    old = Finding.model_validate({"check": "c", "outcome": "drift", "metric": "words", "detail": "of then"})
    assert (sentence_of(old.metric), sentence_of(old.detail)) == ("words", "of then")
    assert sentence_of(fact("later.code", size=3, name="x")) == "later.code (size=3, name=x)"


def test_words_of_a_worker_are_values_and_never_templates() -> None:
    made = fact("gap.of-side", side="{__class__}", what="{0.__class__} {x!r} %s")
    assert sentence_of(made) == "the {__class__} {0.__class__} {x!r} %s"


def test_several_statements_are_joined_without_empty_ones() -> None:
    both = joined([fact("rerun.equal-bits"), "", "said by a worker"])
    assert sentence_of(both) == "an unchanged rerun: bitwise equal; said by a worker"
    assert joined(["", ""]) == ""
    assert joined(["alone"]) == "alone"
    assert Fact.model_validate_json(fact(LIST, parts=[fact("rerun.equal-bits")]).model_dump_json()).parts


def test_the_document_of_a_command_has_sentences() -> None:
    cause = Cause(
        code="loss", sure="likely", why=fact("loss.definition"), evidence=(fact("place.at-step", stage="loss", step=1),)
    )
    document = spoken(Judgement(verdict="drift", causes=(cause,)).to_json())
    assert document["causes"][0]["why"] == "the loss differs from its definition on its logits and labels"
    assert document["causes"][0]["evidence"] == ["loss at step 1"]


def test_a_fact_is_printed_by_the_report_alone() -> None:
    with pytest.raises(TypeError, match="a fact is not text"):
        f"{fact('loss.definition')}"
    assert clean(fact("loss.definition"), 20) == "the loss differs fr…"
