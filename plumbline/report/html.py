"""Self-contained HTML report, and compiled templates of all pages.

It needs no font or external image, and is whole without its script.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from plumbline import __version__
from plumbline.judge.rounds import record_numbers
from plumbline.records import LoadedRecord
from plumbline.report.sentences import (
    NONE,
    about,
    amount,
    clean,
    number,
    pair_names,
    percent,
    place,
    seconds,
    source_of,
)
from plumbline.report.view import ReportView, build_view
from plumbline.schema.escape import one_line
from plumbline.schema.verdict import Judgement, PlatformResult, RoundVerdict

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

_EXPONENT = re.compile(r"(\d[\d.]*e-\d+)")


def template(name: str) -> Template:
    """Return a compiled Jinja template of this package."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("plumbline.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["about"] = about
    script = Path(__file__).with_name("page.js.j2").read_text(encoding="utf-8")
    # No other script runs, whatever stands in a record: the policy of the page names this one by its digest.
    environment.globals["script"] = Markup(script)  # noqa: S704 - of this package
    environment.globals["script_sha256"] = b64encode(sha256(script.encode()).digest()).decode()
    environment.filters |= {
        "amount": amount,
        "clean": clean,
        "coded": _coded,
        "number": number,
        "one_line": one_line,
        "percent": percent,
        "place": place,
        "seconds": seconds,
        "source": source_of,
        "unbroken": _unbroken,
    }
    return environment


def _coded(text: str) -> Markup:
    """Escape text for HTML, and format `backquoted` pieces as code."""
    from markupsafe import Markup, escape

    pieces = [escape(piece) for piece in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def _unbroken(text: str) -> Markup:
    """Escape text for HTML, keeping numbers such as 3.0e-4 on one line.

    Browsers break lines after a hyphen.
    """
    from markupsafe import Markup, escape

    pieces = [escape(piece) for piece in _EXPONENT.split(text)]
    return Markup("").join(
        Markup('<span class="unbroken">{}</span>').format(piece) if index % 2 else piece
        for index, piece in enumerate(pieces)
    )


def compare_page(judgement: Judgement, reference: LoadedRecord, candidate: LoadedRecord) -> str:
    """Render the page that compares two records."""
    base, name = pair_names(reference.record, candidate.record)
    platforms = {
        base: PlatformResult(verdict="pass", **record_numbers(reference.record)),
        name: PlatformResult(**judgement.model_dump(), **record_numbers(candidate.record)),
    }
    title = candidate.record.spec.workload
    verdict = RoundVerdict(round=name, suite=title, verdict=judgement.verdict, platforms=platforms)
    records: dict[str, dict[str, LoadedRecord]] = {}
    for key, record in ((base, reference), (name, candidate)):
        records.setdefault(record.record.spec.workload, {})[key] = record
    view = build_view(verdict, records, reference=base, unjudged=base)
    return render_page(replace(view, records=()))


def render_page(view: ReportView) -> str:
    """Render the HTML page of a report view."""
    return rendered("report.html.j2", view=view)


def rendered(file: str, **content: object) -> str:
    """Render one of this package's page templates."""
    return template(file).render(version=__version__, none_sign=NONE, **content)
