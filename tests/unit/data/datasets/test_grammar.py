"""The grammar's best accuracy, reached by an oracle that reads the text."""

from __future__ import annotations

import hashlib
import math
import re

import pytest

from plumbline.data.datasets.grammar import BAD, FLIP_RATES, GOOD, best_accuracy, review, reviews

SAMPLE = 40_000


def score(text: str) -> int:
    """Return good minus bad opinions, with `not` as negation."""
    words = re.findall(r"[a-z]+", text)
    total = 0
    for before, word in zip(["", *words], words, strict=False):
        value = (word in GOOD) - (word in BAD)
        total += -value if before == "not" else value
    return total


@pytest.fixture(scope="module")
def sample():
    return [(score(row.text), row.label) for row in reviews(11, 0, SAMPLE)]


@pytest.mark.long
def test_the_oracle_reaches_the_derived_accuracy_to_four_sigma(sample):
    best = best_accuracy()
    right = sum((result > 0) == label for result, label in sample)
    sigma = math.sqrt(best * (1 - best) / SAMPLE)
    assert abs(right / SAMPLE - best) < 4 * sigma
    assert 0.85 < best < 0.97


def test_labels_are_turned_over_at_the_stated_rate_for_each_clearness_of_the_text(sample):
    for distance, rate in FLIP_RATES.items():
        labels = [(result > 0) == label for result, label in sample if abs(result) == distance]
        assert len(labels) > SAMPLE / 20
        wrong = 1 - sum(labels) / len(labels)
        assert abs(wrong - rate) < 4 * math.sqrt(rate * (1 - rate) / len(labels))


def test_no_score_is_zero_and_neither_label_is_a_majority(sample):
    assert {abs(result) for result, _ in sample} == set(FLIP_RATES)
    assert abs(sum(label for _, label in sample) / SAMPLE - 0.5) < 4 * 0.5 / math.sqrt(SAMPLE)


def test_rows_are_the_same_bytes_everywhere_and_for_ever():
    rows = "\n".join(f"{row.label} {row.text}" for row in reviews(7, 0, 1000))
    assert hashlib.sha256(rows.encode()).hexdigest() == (
        "8f78953dee998baa7715297541a4835aa20428baead338ef165163105c7893e0"
    )


def test_a_row_depends_on_seed_and_number_alone():
    assert list(reviews(7, 100, 3)) == [review(7, 100), review(7, 101), review(7, 102)]
    assert review(7, 100) != review(8, 100)
    assert len({row.text for row in reviews(7, 0, 2000)}) > 1900
