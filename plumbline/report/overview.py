"""Start page over all suites: the last nights of each as bars, and its throughput as lines. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from plumbline.report.charts import MOST_TOGETHER, Line
from plumbline.report.html import rendered
from plumbline.report.sentences import clean, number, when_of
from plumbline.report.site import MatrixRow, night_rows, page_href, report_href
from plumbline.report.story import headline
from plumbline.schema.series import SeriesFile
from plumbline.schema.verdict import Outcome, RoundVerdict, severity

_NIGHTS = 30
_WIDTH, _HEIGHT, _EDGE = 280.0, 44.0, 4.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Each platform's throughput over the nights; `words` is the range of the last values, in samples per second."""

    lines: tuple[Line, ...]
    words: str
    width: float = _WIDTH
    height: float = _HEIGHT


@dataclass(frozen=True)
class SuiteRow:
    """One suite of the start page, with its latest round."""

    suite: str
    latest: RoundVerdict
    has_pages: bool
    reports: Collection[str] = ()
    series: Mapping[str, SeriesFile] = field(default_factory=dict)
    """Of each platform of the latest round, the first one first."""

    @property
    def href(self) -> str:
        """Return the link to the suite's page, or ""."""
        return page_href(self.suite) if self.has_pages else ""

    @property
    def report(self) -> str:
        """Return the link to the latest report, or ""."""
        return report_href("..", self.suite, self.latest.round) if self.latest.round in self.reports else ""

    @property
    def when(self) -> str:
        """Return the time in the name of the latest round, or the whole name."""
        return clean(when_of(self.latest.round), 80)

    @property
    def sentence(self) -> str:
        """Describe the verdict in one sentence."""
        return headline(self.latest, sorted(self.latest.platforms), "", exact=False).sentence

    @cached_property
    def nights(self) -> Sequence[MatrixRow]:
        """Return the last nights, oldest first."""
        return night_rows(self.suite, list(self.series), self.series, self.reports, root="..", last=_NIGHTS)[::-1]

    @property
    def throughput(self) -> Throughput | None:
        """Return the throughput of the same nights, or `None` if it was not measured on two of them."""
        rounds = [row.round for row in self.nights]
        worst_first = sorted(self.series, key=lambda name: -severity(self._outcome(name)))[:MOST_TOGETHER]
        rates = [_rates(self.series[name], rounds) for name in worst_first]
        known = [[rate for rate in line if rate is not None] for line in rates]
        if all(len(line) < 2 for line in known):
            return None
        low, high = min(map(min, filter(None, known))), max(map(max, filter(None, known)))
        span = high - low or 1.0

        def point(index: int, rate: float) -> str:
            across = _EDGE + index * (_WIDTH - 2 * _EDGE) / (len(rounds) - 1)
            return f"{across:.1f},{_HEIGHT - _EDGE - (rate - low) / span * (_HEIGHT - 2 * _EDGE):.1f}"

        lines = []
        for place, (platform, line) in enumerate(zip(worst_first, rates, strict=True)):
            at = [(index, rate) for index, rate in enumerate(line) if rate is not None]
            words = "|".join(
                f"{clean(platform, 63)}, {when_of(rounds[i])[:10]}: {number(rate)} samples/s" for i, rate in at
            )
            lines.append(Line(" ".join(point(*each) for each in at), place, words))
        last = [line[-1] for line in known if line]
        ends = list(dict.fromkeys((number(min(last)), number(max(last)))))
        return Throughput(tuple(lines), " to ".join(ends))

    def _outcome(self, platform: str) -> Outcome:
        result = self.latest.platforms.get(platform)
        return result.verdict if result else "inconclusive"


def _rates(series: SeriesFile, rounds: Sequence[str]) -> list[float | None]:
    """Return the first workload's throughput in each of the rounds."""
    column = series.metrics.get("throughput", ())
    rates = {series.round[at]: column[at] for at in series.places(series.workloads[0])} if column else {}
    return [rates.get(name) for name in rounds]


def index_page(rows: Sequence[SuiteRow]) -> str:
    """Render the suites, worst latest verdict first."""
    return rendered("index.html.j2", rows=sorted(rows, key=lambda row: (-severity(row.latest.verdict), row.suite)))
