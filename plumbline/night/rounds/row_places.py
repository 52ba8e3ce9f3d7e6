"""Places of different rows in the user's own data files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.data.datasets import row_origins
from plumbline.data.stores import RetryPolicy, Store, open_store
from plumbline.data.stores.protocol import read_bytes, read_object
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.data import row_changes
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import Baselines
from plumbline.night.rounds.plan import Round
from plumbline.records import LoadedRecord
from plumbline.schema.base import read_model
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError, PlumblineError
from plumbline.schema.escape import clean
from plumbline.schema.fact import Fact, fact
from plumbline.schema.manifest import Manifest
from plumbline.schema.verdict import Judgement, PlatformResult

J = TypeVar("J", bound=Judgement)
_MAX_SHARD_BYTES = 64 << 20
_MAX_CHARS = 120
_CODES = ("data.content", "data.labels")
_POLICY = RetryPolicy(attempts=2, deadline_seconds=10.0)
"""A controller often may not read a platform's data: it asks once more, and does without."""

Results = dict[str, dict[str, PlatformResult]]
"""By workload, then by platform."""


def placed_results(round_: Round, results: Results, gathered: GatheredRecords, baselines: Baselines) -> Results:
    """Return the results with file and line added for different rows.

    They are unchanged where the data cannot be read.
    """
    placed: Results = {}
    for workload, of_platform in results.items():
        records = gathered.of(workload)
        placed[workload] = dict(of_platform)
        for name, result in of_platform.items():
            against = _against(result, records, baselines.get(workload, {}).get(name))
            if name not in records or against is None:
                continue
            try:
                store = open_store(round_.suite.platforms[round_.suite.reference].data, policy=_POLICY)
                placed[workload][name] = placed_rows(result, against, records[name], store)
            except (PlumblineError, pa.ArrowException):
                return results
    return placed


def _against(
    result: PlatformResult, records: Mapping[str, LoadedRecord], baseline: LoadedRecord | None
) -> LoadedRecord | None:
    """Return the record that a platform's data is compared with."""
    for finding in result.findings:
        if finding.check == "data.rows" and finding.outcome == "drift":
            kind, _, name = finding.against.partition(" ")
            return records.get(name) if kind == "platform" else baseline
    return None


def placed_rows(judgement: J, reference: LoadedRecord, candidate: LoadedRecord, store: Store) -> J:
    """Return the judgement with the places of different rows as evidence.

    `store` is the reference's data store. Raise `PlumblineError` if it cannot be read.
    """
    if not any(cause.code in _CODES for cause in judgement.causes):
        return judgement
    lines = row_lines(store, reference, [change.row for change in row_changes(Pair(reference, candidate))])
    causes = (
        cause.replace(evidence=(*cause.evidence, *lines)) if cause.code in _CODES else cause
        for cause in judgement.causes
    )
    return judgement.replace(causes=tuple(causes))


def row_lines(store: Store, record: LoadedRecord, rows: Iterable[int]) -> tuple[Fact, ...]:
    """Describe each row like `row 7 is reviews.csv, line 17, "text"`.

    Rows without a place and a text are left out.
    Raise `PlumblineError` if the store cannot be read, or has a different dataset of that name.
    """
    if isinstance(record.record.spec, CapturedSpec):
        return ()
    spec = record.record.spec.data
    wanted = sorted(set(rows))
    manifest = read_model(Manifest, read_bytes(store, f"{spec.name}/manifest.json"), where=f"{store.url}/{spec.name}")
    if manifest.digest != spec.manifest_sha256:
        raise InvalidInputError("is a different dataset than the record's", where=f"{store.url}/{spec.name}")
    places = row_origins(store, spec.name, manifest.digest, wanted)
    texts = _texts(store, spec.name, manifest, wanted)
    return tuple(
        fact(
            "data.row",
            row=row,
            place=fact("data.row-place", place=clean(places[row])) if row in places else "",
            text=fact("data.row-text", text=texts[row]) if row in texts else "",
        )
        for row in wanted
        if row in places or row in texts
    )


def _texts(store: Store, name: str, manifest: Manifest, rows: Iterable[int]) -> Mapping[int, str]:
    """Return each row's text, shortened, from a shard of moderate size."""
    ends = list(accumulate(shard.num_rows for shard in manifest.shards))
    texts: dict[int, str] = {}
    for shard, end in zip(manifest.shards, ends, strict=True):
        here = [row - end + shard.num_rows for row in rows if end - shard.num_rows <= row < end]
        if not here or shard.size > _MAX_SHARD_BYTES:
            continue
        data, _ = read_object(store, f"{name}/{shard.key}", max_bytes=_MAX_SHARD_BYTES)
        if digest_bytes(data) != shard.sha256:
            continue  # the places of the rows are worth more than a complaint about their texts
        column = pq.read_table(pa.BufferReader(data), columns=["text"]).column("text")
        if len(column) != shard.num_rows:
            continue
        texts |= {end - shard.num_rows + at: clean(column[at].as_py(), _MAX_CHARS) for at in here}
    return texts
