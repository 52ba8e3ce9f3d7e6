"""Markdown page with all charts of the report.

The charts are pictures.
"""

from __future__ import annotations

import base64

from plumbline.report.charts import Chart
from plumbline.report.html import template
from plumbline.report.markdown import safe
from plumbline.report.view import ReportView

_MOST_BYTES = 600_000
"""Maximum size of an artifact in the Prefect UI: the server's database keeps one per night."""


def figures_page(view: ReportView) -> str:
    """Return Markdown with every chart, up to a maximum size."""
    lines, size, left_out = [], 0, 0
    for heading, chart in _charts(view):
        picture = base64.b64encode(template("figure.svg.j2").render(chart=chart).encode()).decode()
        size += len(picture)
        if size > _MOST_BYTES:
            left_out += 1
            continue
        uri = f"data:image/svg+xml;base64,{picture}"
        title = safe(f"{heading}{chart.title}")
        lines += [f"### {title}", "", safe(chart.note), "", f"![{title}]({uri})", ""]
    if left_out:
        lines += [f"{left_out} more charts are in the report.", ""]
    return "\n".join(lines) or "No platform left a record in this round, so there is no chart.\n"


def _charts(view: ReportView) -> list[tuple[str, Chart]]:
    several = len(view.workloads) > 1
    charts = [("", view.history)] if view.history else []
    return [
        *charts,
        *((f"{workload.name}: " if several else "", chart) for workload in view.workloads for chart in workload.charts),
    ]
