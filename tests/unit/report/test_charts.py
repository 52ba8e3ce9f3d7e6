"""Charts: distinct platforms, and no element outside the picture."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from plumbline.report.charts import MARKED, MOST_TOGETHER, room_for, shortened
from plumbline.report.markdown import figures_page
from tests.unit.report.samples import made_view, many
from tests.unit.report.test_faces import pictures


def view_of(count):
    verdict, records, history = many(count)
    return made_view(verdict, records, reference="aws", history=history)


def charts_of(view):
    return [view.history, *view.workloads[0].charts]


def drawings(view):
    """Yield every drawn chart."""
    for chart in charts_of(view):
        yield from chart.panels or (chart, chart.narrow)


@pytest.mark.parametrize("count", [2, 6])
def test_series_in_one_drawing_have_numbers_of_their_own(count):
    view = view_of(count)
    assert len(charts_of(view)) == 4
    for drawing in drawings(view):
        series = [item.index for item in drawing.legend]
        assert series
        assert len({index % MOST_TOGETHER for index in series}) == len(series) <= MOST_TOGETHER


@pytest.mark.parametrize("count", [7, 20])
def test_many_platforms_have_a_panel_each_and_those_that_did_not_pass_come_first(count):
    verdict, _, _ = many(count)
    drifted = [name for name, result in sorted(verdict.platforms.items()) if result.verdict == "drift"]
    for chart in charts_of(view_of(count)):
        titles = [panel.title for panel in chart.panels]
        assert sorted(titles) == sorted(set(verdict.platforms) - {"aws"})
        assert titles[: len(drifted)] == drifted
        assert [panel.title for panel in chart.panels if panel.is_marked] == drifted
        for panel in chart.panels:
            own = {line.series for line in panel.lines} | {mark.series for mark in panel.marks}
            assert (MARKED in own) == panel.is_marked


def spans(drawing):
    """Left and right edge, and height, of every text."""
    texts = [(label.x, label.y, label.text, label.anchor) for label in drawing.labels]
    texts += [(rule.x, rule.y, rule.text, rule.anchor) for rule in drawing.rules if rule.text]
    texts += [(tick.at, drawing.bottom + 17, tick.label, tick.anchor) for tick in drawing.x_ticks if not tick.minor]
    texts += [(drawing.left - 8, tick.at, tick.label, "end") for tick in drawing.y_ticks]
    for x, y, text, anchor in texts:
        width = 0.9 * room_for([text])
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        yield text, left, left + width, y


@pytest.mark.parametrize("count", [2, 6, 8, 20])
def test_no_text_stands_outside_its_drawing(count):
    for drawing in drawings(view_of(count)):
        for text, left, right, y in spans(drawing):
            assert left >= -1, (drawing.title, text)
            assert right <= drawing.width + 1, (drawing.title, text)
            assert 8 <= y <= drawing.height, (drawing.title, text)


@pytest.mark.parametrize("count", [2, 6, 8])
def test_the_numbers_of_a_change_are_never_cut(count):
    texts = [rule.text for drawing in drawings(view_of(count)) for rule in drawing.rules if rule.text]
    assert texts
    for text in texts:
        assert re.search(r"(^|: )\d{3}\.\d to \d{3}\.\d( |$)", text), text


def test_labels_at_the_ends_of_lines_never_overlap():
    for chart in charts_of(view_of(6)):
        heights = sorted(label.y for label in chart.labels if label.x > chart.right)
        assert all(later - earlier >= 14 for earlier, later in pairwise(heights))


def test_names_that_are_cut_still_differ():
    names = [f"region-{index}-pool-with-a-long-name-{index}" for index in range(8, 20)]
    assert len({shortened(name, 120) for name in names}) == len(names)


def test_the_headline_names_a_cause_once_with_all_its_platforms():
    view = view_of(20)
    assert [(line.cause.code, line.platforms, line.card) for line in view.headline.causes] == [
        ("precision", "azure and kubernetes-on-prem-paris", 1)
    ]
    assert "and 15 more" in view.headline.support


def test_pictures_of_small_multiples_hold_every_panel():
    view = view_of(8)
    assert len(charts_of(view)) == 4
    for picture, chart in zip(pictures(figures_page(view)), charts_of(view), strict=True):
        words = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert {f"{panel.title}: {panel.note}" for panel in chart.panels} <= words


def test_the_report_says_what_the_labels_stand_for():
    verdict, records, _ = many(2)
    for name, item in records.items():
        spec = item.record.spec
        named = spec.replace(data=spec.data.replace(class_names=("negative", "positive")))
        records[name] = replace(item, record=item.record.replace(spec=named, spec_sha256=named.digest))
    view = made_view(verdict, records, reference="aws")
    assert view.workloads[0].recipe.endswith("; classes 0 = negative, 1 = positive")
