"""Locate a dataset source's files by split, locally or in a store."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path, PurePosixPath

from plumbline.data.datasets.readers import format_of, uncompressed
from plumbline.data.stores import ObjectInfo, open_store
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.store_url import KINDS, safe_key

_WILD = re.compile(r"[*?\[]")
STORES = tuple(f"{scheme}://" for scheme in KINDS if scheme != "file")
_SPLITS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "eval": "validation", "evaluation": "validation", "test": "test", "testing": "test",
    "holdout": "test", "heldout": "test", "hold": "test", "held": "test",
}  # fmt: skip
_SET = re.compile(r"(set|data|split)s?$")
_NO_DATA = re.compile(r"(?i)^([._].*|readme.*|licen[cs]e.*|.*\.(md|crc|lock|metadata|sha256)|dataset_infos?\.json)$")
_TABLES = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi", "metadata/*.metadata.json": "Apache Iceberg"}
"""Table formats by what their folder contains: their log says which of the Parquet files are live."""
_MAX_FILES = 100_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Local file, with the name that messages show."""

    path: Path
    name: str
    key: str
    """Name within the source, independent of the source's folder."""


@dataclass(frozen=True, slots=True)
class Located:
    """Located files of a dataset source; `evaluation` may be empty."""

    train: tuple[SourceFile, ...]
    evaluation: tuple[SourceFile, ...]
    label: str
    """Last part of the source's name, for the manifest, independent of its folder."""
    unread: tuple[str, ...] = ()
    """Names of the files of unused splits, and of those that a name such as `_b.csv` or `readme.csv` leaves out."""
    saved: Path | None = None
    """Folder that the library `datasets` saved, instead of files."""


def is_file_source(name: str) -> bool:
    """Return whether `name` means files, not a Hugging Face dataset."""
    return (
        "://" in name or name.startswith((".", "/", "~")) or bool(_WILD.search(name))
        or Path(name).exists() or bool(format_of(name)) or name.count("/") > 1
        or ("/" not in name and bool(Path(name).suffix))
    )  # fmt: skip


def locate(name: str, download_folder: Path, apart: Iterable[SourceFile] = ()) -> Located:
    """Return the files of `name`, without those set `apart`. Download those of a store to `download_folder`."""
    if name.startswith(STORES):
        files, left_out = _from_store(name, download_folder)
    elif name.startswith("file://"):
        return locate(name.removeprefix("file://"), download_folder, apart)
    elif "://" in name:
        hint = "file, s3, az or gs; download anything else first"
        raise ConfigurationError("unsupported kind of URL", where=name, key="path", hint=hint)
    else:
        files, left_out = _local(name)
    label = PurePosixPath(name).name
    if _is_saved(files):
        return Located((), (), label, saved=download_folder if name.startswith(STORES) else Path(name).expanduser())
    known = {os.path.realpath(file.name) for file in apart}
    files = {key: file for key, file in files.items() if os.path.realpath(file.name) not in known}
    train, evaluation = _split(files, name)
    evaluation = () if known else evaluation
    unread = {*left_out, *files} - {file.key for file in (*train, *evaluation)}
    return Located(train, evaluation, label, unread=tuple(sorted(unread)))


def _is_saved(keys: Collection[str]) -> bool:
    """Return whether the library `datasets` wrote a folder by `save_to_disk`."""
    return "dataset_dict.json" in keys or {"dataset_info.json", "state.json"} <= set(keys)


def content_marks(name: str) -> list[str]:
    """Return lines that change with the files' content: digests, or a store's etags."""
    if name.startswith(STORES):
        _, objects = _listing(name)
        return [f"{info.key} {info.size} {info.etag}" for info in objects.values()]
    files, _ = _local(name.removeprefix("file://"))
    return [f"{key} {digest_file(file.path)}" for key, file in files.items() if file.path.is_file()]


def _local(name: str) -> tuple[dict[str, SourceFile], list[str]]:
    """Return the local data files of `name` by relative path, in order, and those that are left out."""
    path = Path(name).expanduser()
    if path.is_dir() or _WILD.search(name):
        root = path if path.is_dir() else Path(_root(str(path)))
        around = [root, *root.absolute().parents]
        _refuse_table([str(found) for folder in around for mark in _TABLES for found in folder.glob(mark)], name)
    if path.is_dir():
        local_files = files_below(path)
    elif path.exists() or not _WILD.search(name):
        return {path.name: SourceFile(path, name, path.name)}, []
    else:
        local_files = {
            file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name: file
            for file in map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - a pattern of the user
            if not file.is_dir()
        }
        _check_files(local_files.values())
    chosen, left_out = _data_files(local_files, name)
    return {key: SourceFile(local_files[key], str(local_files[key]), key) for key in chosen}, left_out


def _refuse_table(keys: Iterable[str], name: str) -> None:
    """Raise for files of a table format: rows that were deleted or replaced are in its files, too."""
    for key, (mark, kind) in product(keys, _TABLES.items()):
        if fnmatchcase(f"/{key}/", f"*/{mark}/*"):
            hint = "write the table's current rows into Parquet files of their own"
            text = f"is of a {kind} table, whose files also hold deleted rows"
            raise ConfigurationError(text, where=name, key="path", hint=hint)


def files_below(folder: Path) -> dict[str, Path]:
    """Return a folder's files by relative path, once each, following symbolic links.

    Those whose names begin with a dot are left out. Raise for a link whose target does not exist: its rows would be
    missing.
    """
    found: dict[str, Path] = {}
    known = {os.path.realpath(folder)}
    for place, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        shown = [Path(place, name) for name in sorted(names + folders) if not name.startswith(".")]
        folders[:] = [path.name for path in shown if path.is_dir() and _is_new(path, known)]
        found |= {path.relative_to(folder).as_posix(): path for path in shown if not path.is_dir()}
    _check_files(found.values())
    return {key: path for key, path in sorted(found.items()) if _is_new(path, known)}


def _raise(error: OSError) -> None:
    raise error


def _is_new(path: Path, known: set[str]) -> bool:
    """Return whether a file was not already found through another link."""
    real = os.path.realpath(path)
    is_new = real not in known
    known.add(real)
    return is_new


def _check_files(paths: Iterable[Path]) -> None:
    """Raise for a path that is not a file (broken link)."""
    for path in paths:
        if not path.is_file():
            hint = "fetch the target of the link, such as by `git annex get` or `dvc pull`, or remove the link"
            raise ConfigurationError("is not a file that can be read", where=str(path), key="path", hint=hint)


def _root(pattern: str) -> str:
    """Return the folder above a glob pattern's first wildcard."""
    fixed = pattern[: match.start()] if (match := _WILD.search(pattern)) else pattern
    return fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")


def _listing(name: str) -> tuple[str, dict[str, ObjectInfo]]:
    """Return the folder URL of `name`, and its objects by key."""
    pattern = ""
    if _WILD.search(name):
        base = _root(name)
        pattern = name.removeprefix(f"{base}/")
    elif format_of(name):
        base, _, pattern = name.rpartition("/")
    else:
        base = name.rstrip("/")
    wild = _WILD.search(pattern)
    prefix = pattern[: wild.start()] if wild else pattern
    store = open_store(base)
    if wild:
        _refuse_table([info.key for mark in _TABLES for info in store.list(mark.partition("*")[0])], name)
    objects = store.list(prefix)
    return base, {info.key: info for info in objects if not pattern or _matches(info.key, pattern)}


def _from_store(name: str, folder: Path) -> tuple[dict[str, SourceFile], list[str]]:
    """Download the data files below a URL. Return them, and the names of those that are left out."""
    base, known = _listing(name)
    store = open_store(base)
    files = {}
    chosen, left_out = _data_files(known, name)
    for number, key in enumerate(chosen):
        path = folder / (safe_key(key) if _is_saved(known) else f"{number:06d}/{PurePosixPath(key).name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with store.open(key, if_match=known[key].etag) as reader, path.open("wb") as file:
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            while count := reader.readinto(buffer):
                file.write(buffer[:count])
        files[key] = SourceFile(path, f"{base}/{key}", key)
    return files, left_out


def _matches(key: str, pattern: str) -> bool:
    """Return whether a key matches a glob pattern; only `**` crosses folders."""
    if "**" in pattern:
        return fnmatchcase(key, pattern.replace("**/", "*").replace("**", "*"))
    parts, patterns = key.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _data_files(keys: Collection[str], name: str) -> tuple[list[str], list[str]]:
    """Return the sorted keys of data files, and those left out by name. Raise for unknown or mixed types."""
    if _is_saved(keys):
        return sorted(keys), []
    _refuse_table(keys, name)
    chosen = sorted(key for key in keys if not any(_NO_DATA.match(part) for part in key.split("/")))
    if not chosen:
        raise ConfigurationError("contains no data file", where=name, key="path", hint="CSV, JSON, JSONL or Parquet")
    if len(chosen) > _MAX_FILES:
        raise InvalidInputError(f"more than {_MAX_FILES:,} files", where=name, key="path")
    kinds: dict[str, str] = {}
    unpacked: dict[str, str] = {}
    for key in chosen:
        kind = format_of(key)
        if (other := unpacked.setdefault(uncompressed(key), key)) != key:
            text = f"{other!r} and {key!r} have one name: their rows would count twice"
            raise ConfigurationError(text, where=name, key="path", hint="choose one with a glob")
        if not kind:
            hint = "name the data files with a glob, such as FOLDER/*.parquet"
            raise ConfigurationError(f"{key!r} is of an unsupported file type", where=name, key="path", hint=hint)
        kinds.setdefault(kind, key)
    if len(kinds) > 1:
        text = f"contains files of different types: {', '.join(sorted(kinds.values()))}"
        raise ConfigurationError(text, where=name, key="path", hint="choose one type with a glob")
    return chosen, [key for key in {*keys}.difference(chosen) if format_of(key)]


def _split_of(key: str) -> str:
    """Return the split named in a file's name or folder, else ""."""
    for part in reversed(key.split("/")):
        words = (_SET.sub("", word.lower()) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", part))
        names = [word for word in words if word in _SPLITS]
        if names:
            return _SPLITS[names[0]]
    return ""


def _split(files: dict[str, SourceFile], name: str) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...]]:
    """Return training files and evaluation files."""
    splits: dict[str, list[str]] = {}
    for key in files:
        splits.setdefault(_split_of(key), []).append(key)
    if len(splits) == 1:
        return tuple(files.values()), ()
    if "" in splits or "train" not in splits:
        text = "names splits, and none of them is for training"
        if "" in splits:
            text = f"names splits, and {splits[''][0]!r} belongs to none of them"
        hint = "choose files with a glob, and evaluation files with --evaluation, in a suite evaluation_path"
        raise ConfigurationError(text, where=name, key="path", hint=hint)
    chosen = "validation" if "validation" in splits else "test"
    return tuple(files[key] for key in splits["train"]), tuple(files[key] for key in splits[chosen])
