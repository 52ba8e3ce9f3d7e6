"""The faces of a round: the HTML report, the terminal's table, JUnit XML and a CI job's summary."""

from plumbline.report.history import History, HistoryPoint, points_of
from plumbline.report.html import render_report

__all__ = ["History", "HistoryPoint", "points_of", "render_report"]
