"""Templates of the report's pages, compiled once."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from plumbline.report.words import clean, number, seconds

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

__all__ = ["template"]

_EXPONENT = re.compile(r"(\d[\d.]*e-\d+)")


def template(name: str) -> Template:
    """Return a template from this package."""
    return _environment().get_template(name)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("plumbline.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clean": clean,
        "coded": _coded,
        "number": number,
        "seconds": seconds,
        "unbroken": _unbroken,
    }
    return environment


def _coded(text: str) -> Markup:
    """Escape text, and format `backquoted` pieces as code."""
    from markupsafe import Markup, escape

    pieces = [escape(piece) for piece in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if index % 2 else piece for index, piece in enumerate(pieces)
    )


def _unbroken(text: str) -> Markup:
    """Escape text; keep numbers such as 3.0e-4 on one line.

    Browsers break lines after a hyphen.
    """
    from markupsafe import Markup, escape

    pieces = [escape(piece) for piece in _EXPONENT.split(text)]
    return Markup("").join(
        Markup('<span class="unbroken">{}</span>').format(piece) if index % 2 else piece
        for index, piece in enumerate(pieces)
    )
