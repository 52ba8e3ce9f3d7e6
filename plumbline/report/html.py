"""Report as one self-contained HTML page.

It needs no script, font or external image.
"""

from __future__ import annotations

from collections.abc import Mapping

from plumbline import __version__
from plumbline.report.history import RoundHistory
from plumbline.report.templates import template
from plumbline.report.view import Records, ReportView, build_view
from plumbline.report.words import NONE
from plumbline.schema.verdict import RoundVerdict

__all__ = ["render_page", "render_report"]


def render_report(
    verdict: RoundVerdict,
    records: Records,
    history: RoundHistory | None = None,
    *,
    reference: str = "",
    baselines: Records | None = None,
    records_base: str = "../../../records",
    record_links: Mapping[str, str] | None = None,
) -> str:
    """Render the page of a round.

    `records_base` is the location of record folders, relative to the page; `record_links` overrides it by record id.
    """
    return render_page(
        build_view(
            verdict, records, reference=reference, baselines=baselines, history=history, records_base=records_base,
            record_links=record_links,
        )
    )  # fmt: skip


def render_page(view: ReportView) -> str:
    """Render the page of a view."""
    return template("report.html.j2").render(view=view, version=__version__, none_sign=NONE)
