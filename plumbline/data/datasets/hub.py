"""Rows of a `datasets` dataset: from the Hub, or saved on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from plumbline.data.datasets.receipts import Reading
from plumbline.data.datasets.rows import ColumnOptions, RawRow, checked_row, declared_name
from plumbline.schema.delimited import Place
from plumbline.schema.errors import (
    DISK_FULL,
    AccessError,
    ConfigurationError,
    DiskFullError,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.schema.suite import DatasetSource
from plumbline.schema.suite_file import suggest_or_list
from plumbline.schema.variables import variable

_ANSWER_SECONDS = 3.0
"""Time for all requests that find out whether the Hub can be reached."""
_EXPORT = "check the name and the network, or export the dataset to CSV, JSONL or Parquet and use that file"
_HUB = "the Hugging Face Hub"
_DATA = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".txt", ".gz", ".zst", ".zip", ".arrow", ".safetensors")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")

T = TypeVar("T")

_EVALUATION_SPLITS = ("validation", "test")


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Training rows, evaluation rows if predefined, and declared classes."""

    train: Iterable[RawRow]
    evaluation: Iterable[RawRow] | None
    label: str
    """Name of the source for the manifest."""
    classes: tuple[str, ...] | None = None
    keys: dict[str, str] = field(default_factory=dict)
    """Names of the source's files in messages, with their names within the source."""


def _of_splits(
    splits: Any, source: DatasetSource, name: str, options: ColumnOptions, reading: Reading, *, label: str
) -> SourceRows:
    """Return a loaded dataset's training rows, and evaluation rows if any split fits."""
    if not options.header:
        raise ConfigurationError("is set to no header, which only CSV and TSV may lack", where=name, key="header")
    train = _known(name, "split", source.split or "train", splits)
    evaluation = _evaluation(name, source.evaluation_split, train, splits, options)
    reading.unread = tuple(sorted(set(splits) - {train, evaluation}))
    columns = options.resolve(splits[train].column_names, f"{name}, {train}")
    feature = splits[train].features.get(columns.label) if columns.label else None
    names = tuple(getattr(feature, "names", None) or ()) or None
    rows = [
        _rows(f"{name}, {split}", splits[split], options, names, reading)
        for split in (train, evaluation) if split
    ]  # fmt: skip
    return SourceRows(rows[0], rows[1] if evaluation else None, label, names)


def read_saved(folder: Path, source: DatasetSource, label: str, options: ColumnOptions, reading: Reading) -> SourceRows:
    """Return the rows of a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    import datasets

    datasets.disable_progress_bars()
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # `datasets` raises the errors of its libraries, and bare ones of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        text = f"cannot be read as a saved dataset: {reason}"
        raise InvalidInputError(text, where=label, hint="save it again with `save_to_disk`") from error
    splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    return _of_splits(splits, source, label, options, reading, label=label)


def _known(name: str, key: str, split: str, splits: Any) -> str:
    if split not in splits:
        hint = suggest_or_list(split, list(splits))
        raise ConfigurationError(f"the split {split!r} does not exist", where=name, key=key, hint=hint)
    return split


def _evaluation(name: str, chosen: str | None, train: str, splits: Any, options: ColumnOptions) -> str:
    if chosen:
        return _known(name, "evaluation_split", chosen, splits)
    known = [split for split in _EVALUATION_SPLITS if split in splits and split != train]
    return next((split for split in known if _is_labelled(splits[split], options)), "")


def _is_labelled(split: Any, options: ColumnOptions) -> bool:
    """Return whether a split has labels (hidden ones are -1)."""
    if not options.labelled:
        return True
    try:
        label = options.resolve(split.column_names, "").label
    except InvalidInputError:
        return False
    return any(value is not None and value != -1 for value in split[label])


def _rows(
    where: str, rows: Any, options: ColumnOptions, names: Sequence[str] | None, reading: Reading
) -> Iterator[RawRow]:
    columns = options.resolve(rows.column_names, where)
    for number, values in enumerate(rows, start=1):
        place = Place(where, "row", number)
        if names is not None and columns.label is not None:
            label = declared_name(values[columns.label], names, str(place), columns.label)
            yield checked_row({**values, columns.label: label}, columns, place)
        else:
            yield checked_row(values, columns, place)
    reading.add_rows("the library datasets", len(rows), columns)


def read_hub(source: DatasetSource, options: ColumnOptions, reading: Reading) -> SourceRows:
    """Load a Hub dataset, `NAME` or `NAME:CONFIG`, and return its rows."""
    name = source.path or ""
    repository, _, named = name.partition(":")
    commit, config = _commit(source), source.config or named or None
    splits = _load(name, repository, config, commit or source.revision, is_known=bool(commit))
    label = f"huggingface.co/datasets/{repository}" + (f":{config}" if config else "")
    label += f"@{commit}" if commit else ""
    return _of_splits(splits, source, name, options, reading, label=label)


def reachable_commit(
    repository: str, kind: Literal["dataset", "model"], revision: str | None, where: str, *, key: str = "path"
) -> str:
    """Return a revision's commit if its files are reachable. Raise `UnavailableError` after a few seconds.

    Two requests share one time limit: the repository's description, and a data file. The Hub redirects requests of
    files to other hosts, which may be blocked, and a download would try for a minute.
    """
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo

    end = time.monotonic() + _ANSWER_SECONDS
    api = HfApi()
    describe: Callable[..., DatasetInfo | ModelInfo] = api.dataset_info if kind == "dataset" else api.model_info
    info = ask_hub(lambda: describe(repository, revision=revision, timeout=_ANSWER_SECONDS), where, end, key=key)
    commit = str(info.sha or "")
    name = next((file.rfilename for file in info.siblings or () if file.rfilename.endswith(_DATA)), None)
    if name is not None:
        asked = f"the files on {_HUB}"
        ask_hub(lambda: _reach_file(repository, kind, commit, name), where, end, key=key, asked=asked)
    return commit


def ask_hub(question: Callable[[], T], where: str, end: float, *, key: str = "path", asked: str = _HUB) -> T:
    """Return the Hub's response; raise `UnavailableError` at monotonic time `end`.

    A thread bounds the wait: name resolution has a longer timeout, which no client can set.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001 - raised again below, by its kind
            errors.append(error)

    thread = threading.Thread(target=ask, name="hub", daemon=True)
    thread.start()
    thread.join(max(end - time.monotonic(), 0.0))
    if answers:
        return answers[0]
    raise _refusal(errors[0] if errors else None, where, key, asked)


def quiet_hub() -> None:
    """Silence huggingface_hub's warnings, so that one error line remains."""
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _reach_file(repository: str, kind: str, commit: str, name: str) -> None:
    """Read one byte through the Hub's redirect, to test access."""
    from huggingface_hub import get_hf_file_metadata, get_session, hf_hub_url

    url = hf_hub_url(repository, name, repo_type=kind, revision=commit)
    place = get_hf_file_metadata(url, timeout=_ANSWER_SECONDS).location
    if urlsplit(place).netloc != urlsplit(url).netloc:
        headers = {"Range": "bytes=0-0"}
        with get_session().stream("GET", place, headers=headers, timeout=_ANSWER_SECONDS) as response:
            response.raise_for_status()


def _refusal(error: BaseException | None, where: str, key: str, asked: str) -> PlumblineError:
    """Convert a Hub request error: refused, unknown, or no response."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return AccessError("the repository is gated", where=where, hint="accept its terms and run `hf auth login`")
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigurationError("the revision does not exist", where=where, key="revision")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        hint = "check its name; a private repository needs `hf auth login`"
        return ConfigurationError(
            "the repository does not exist on the Hugging Face Hub", where=where, key=key, hint=hint
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = f"HTTP {status}" if status else "no answer" if error is None else type(error).__name__
    text = f"{asked} cannot be reached ({reason})"
    hint = f"set {_OFFLINE[0]}=1 to use the local cache; else {_EXPORT}" if key == "path" else ""
    return UnavailableError(text, where=where, key=key, hint=hint or "check the network, or name a local folder")


def _commit(source: DatasetSource) -> str:
    """Return the commit of the requested revision, or "" when offline."""
    if any(variable(name).upper() in {"1", "TRUE", "YES", "ON"} for name in _OFFLINE):
        return ""
    name = source.path or ""
    return reachable_commit(name.partition(":")[0], "dataset", source.revision, name)


def _load(name: str, repository: str, config: str | None, revision: str | None, *, is_known: bool) -> Any:
    """Load and return the splits, shortening `datasets` errors to one line."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    quiet_hub()
    try:
        if is_known:
            known = datasets.get_dataset_config_names(repository, revision=revision)
            if (config is None and len(known) > 1 and "default" not in known) or (config and config not in known):
                _raise_config(name, config, known)
        return datasets.load_dataset(repository, config, revision=revision)
    except PlumblineError:
        raise
    # Offline mode, script-only datasets, unreadable files, a lost connection: each library below has its own errors.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise DiskFullError("no room for the dataset's files", where=name, key="HF_HOME") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        text = f"the dataset cannot be downloaded from the Hugging Face Hub: {reason}"
        raise UnavailableError(text, where=name, key="path", hint=_EXPORT) from error


def _raise_config(name: str, config: str | None, known: Sequence[str]) -> None:
    text = f"the configuration {config!r} does not exist" if config else "has several configurations"
    raise ConfigurationError(text, where=name, key="config", hint=suggest_or_list(config or "", known))
