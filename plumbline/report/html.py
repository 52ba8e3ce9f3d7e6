"""The report as one HTML page that needs nothing else: no script, no font, no picture from elsewhere."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from plumbline import __version__
from plumbline.report.history import History
from plumbline.report.view import Records, build_view
from plumbline.report.words import NONE, clean, number, seconds
from plumbline.schema.verdict import RoundVerdict

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup

__all__ = ["render_report"]


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("plumbline.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clean": clean, "coded": _coded, "number": number, "seconds": seconds}
    return environment.get_template("report.html.j2")


def _coded(text: str) -> Markup:
    """Escaped text in which `this` is set as code."""
    from markupsafe import Markup, escape

    pieces = [escape(piece) for piece in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def render_report(
    verdict: RoundVerdict,
    records: Records,
    history: History | None = None,
    *,
    reference: str = "",
    baselines: Records | None = None,
    records_base: str = "../../records",
) -> str:
    """The page for a round; `records_base` is where record folders lie, seen from the page."""
    view = build_view(
        verdict, records, reference=reference, baselines=baselines, history=history, records_base=records_base
    )
    return _template().render(view=view, version=__version__, none_sign=NONE)
