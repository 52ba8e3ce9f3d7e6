"""Rows of a dataset of the library `datasets`: from the Hugging Face Hub, or saved by `save_to_disk`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from plumbline.data.receipts import Reading
from plumbline.data.rows import ColumnOptions, Place, RawRow, checked_row
from plumbline.errors import (
    DISK_FULL,
    AccessError,
    ConfigurationError,
    DiskFullError,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.schema.suite_file import suggest_or_list
from plumbline.variables import variable

_ANSWER_SECONDS = 3.0
"""Time for all requests that find out whether the Hub can be reached."""
_EXPORT = "check the name and the network, or export the dataset to CSV, JSONL or Parquet and use that file"
_HUB = "the Hugging Face Hub"
_DATA = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".txt", ".gz", ".zst", ".zip", ".arrow", ".safetensors")
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")

T = TypeVar("T")

_EVALUATION_SPLITS = ("validation", "test")


@dataclass(frozen=True, slots=True)
class Splits:
    """A dataset's name for messages, and the chosen splits; `None` means the usual one."""

    name: str
    train: str | None = None
    evaluation: str | None = None


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of the chosen splits, and declared classes."""

    train: Iterator[RawRow]
    evaluation: Iterator[RawRow] | None
    classes: tuple[str, ...] | None


def read_splits(splits: Any, chosen: Splits, options: ColumnOptions, reading: Reading) -> SplitRows:
    """Return the rows of a loaded dataset; evaluate on the chosen split, else `validation` or `test`."""
    if not options.header:
        raise ConfigurationError(
            "is set to no header, which only CSV and TSV may lack", where=chosen.name, key="header"
        )
    train = _known(chosen, "split", chosen.train or "train", splits)
    evaluation = _evaluation(chosen, train, splits, options)
    columns = options.resolve(splits[train].column_names, f"{chosen.name}, {train}")
    feature = splits[train].features.get(columns.label) if columns.label else None
    names = tuple(getattr(feature, "names", None) or ()) or None
    rows = [
        _rows(f"{chosen.name}, {split}", splits[split], options, names, reading)
        for split in (train, evaluation) if split
    ]  # fmt: skip
    return SplitRows(rows[0], rows[1] if evaluation else None, names)


def read_saved(folder: Path, chosen: Splits, options: ColumnOptions, reading: Reading) -> SplitRows:
    """Return the rows of a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    import datasets

    datasets.disable_progress_bars()
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # `datasets` raises the errors of its libraries, and bare ones of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        text = f"cannot be read as a saved dataset: {reason}"
        raise InvalidInputError(text, where=chosen.name, hint="save it again with `save_to_disk`") from error
    splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    return read_splits(splits, chosen, options, reading)


def _known(chosen: Splits, key: str, split: str, splits: Any) -> str:
    if split not in splits:
        hint = suggest_or_list(split, list(splits))
        raise ConfigurationError(f"the split {split!r} does not exist", where=chosen.name, key=key, hint=hint)
    return split


def _evaluation(chosen: Splits, train: str, splits: Any, options: ColumnOptions) -> str:
    if chosen.evaluation:
        return _known(chosen, "evaluation_split", chosen.evaluation, splits)
    known = [split for split in _EVALUATION_SPLITS if split in splits and split != train]
    return next((split for split in known if _is_labelled(splits[split], options)), "")


def _is_labelled(split: Any, options: ColumnOptions) -> bool:
    """Return whether a split has labels; the Hub marks hidden labels with -1."""
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
            label = _name(values[columns.label], names, str(place), columns.label)
            yield checked_row({**values, columns.label: label}, columns, place)
        else:
            yield checked_row(values, columns, place)
    reading.add_rows("the library datasets", len(rows), columns)


def _name(label: Any, names: Sequence[str], where: str, key: str) -> Any:
    """Return a class's declared name."""
    if isinstance(label, int) and not isinstance(label, bool):
        if not 0 <= label < len(names):
            text = f"the label {label} is not one of the {len(names)} classes"
            raise InvalidInputError(
                text, where=where, key=key, hint="-1 marks a hidden label: choose a different split"
            )
        return names[label]
    return label


@dataclass(frozen=True, slots=True)
class HubSource:
    """Requested dataset, `NAME` or `NAME:CONFIG`, with optional splits and revision."""

    name: str
    config: str | None = None
    split: str | None = None
    evaluation_split: str | None = None
    revision: str | None = None

    @property
    def repository(self) -> str:
        """Return the name without a configuration."""
        return self.name.partition(":")[0]


def read_hub(source: HubSource, options: ColumnOptions, reading: Reading) -> tuple[SplitRows, str]:
    """Load a dataset at one commit; return its rows, and a label for the manifest."""
    commit = _commit(source)
    config = source.config or source.name.partition(":")[2] or None
    splits, config = _load(source, config, commit)
    chosen = Splits(source.name, source.split, source.evaluation_split)
    rows = read_splits(splits, chosen, options, reading)
    label = f"huggingface.co/datasets/{source.repository}"
    label += f":{config}" if config else ""
    return rows, label + (f"@{commit}" if commit else "")


def reachable_commit(
    repository: str, kind: Literal["dataset", "model"], revision: str | None, where: str, *, key: str = "path"
) -> str:
    """Return a revision's commit if its files can be reached; raise `UnavailableError` after a few seconds.

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
    """Return the Hub's answer; raise `UnavailableError` at the time `end` of the monotonic clock.

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
    """Silence the warnings of huggingface_hub: one error line is enough."""
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def _reach_file(repository: str, kind: str, commit: str, name: str) -> None:
    """Read one byte of a file from the host that the Hub redirects to."""
    from huggingface_hub import get_hf_file_metadata, get_session, hf_hub_url

    url = hf_hub_url(repository, name, repo_type=kind, revision=commit)
    place = get_hf_file_metadata(url, timeout=_ANSWER_SECONDS).location
    if urlsplit(place).netloc != urlsplit(url).netloc:
        headers = {"Range": "bytes=0-0"}
        with get_session().stream("GET", place, headers=headers, timeout=_ANSWER_SECONDS) as response:
            response.raise_for_status()


def _refusal(error: BaseException | None, where: str, key: str, asked: str) -> PlumblineError:
    """Convert a request's error: refused, unknown, or no answer."""
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


def _commit(source: HubSource) -> str:
    """Return the commit of the requested revision; "" offline."""
    if any(variable(name).upper() in {"1", "TRUE", "YES", "ON"} for name in _OFFLINE):
        return ""
    return reachable_commit(source.repository, "dataset", source.revision, source.name)


def _load(source: HubSource, config: str | None, commit: str) -> tuple[Any, str | None]:
    """Return the splits and the configuration; shorten errors of `datasets` to one line."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    quiet_hub()
    revision = commit or source.revision
    try:
        if commit:
            known = datasets.get_dataset_config_names(source.repository, revision=revision)
            if (config is None and len(known) > 1 and "default" not in known) or (config and config not in known):
                _raise_config(source, config, known)
        return datasets.load_dataset(source.repository, config, revision=revision), config
    except PlumblineError:
        raise
    # Offline mode, script-only datasets, unreadable files, a lost connection: each library below has its own errors.
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise DiskFullError("no room for the dataset's files", where=source.name, key="HF_HOME") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        text = f"the dataset cannot be downloaded from the Hugging Face Hub: {reason}"
        raise UnavailableError(text, where=source.name, key="path", hint=_EXPORT) from error


def _raise_config(source: HubSource, config: str | None, known: Sequence[str]) -> None:
    text = f"the configuration {config!r} does not exist" if config else "has several configurations"
    raise ConfigurationError(text, where=source.name, key="config", hint=suggest_or_list(config or "", known))
