"""The files of a source: one file, a folder or a glob of shards, on this machine or in a store; split by split."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from plumbline.data.readers import format_of
from plumbline.digest import digest_file
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.stores import ObjectInfo, open_store

__all__ = ["Located", "SourceFile", "content_marks", "is_file_source", "locate"]

_WILD = re.compile(r"[*?\[]")
_STORES = ("s3://", "az://", "gs://")
_SPLITS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "eval": "validation", "evaluation": "validation", "test": "test", "testing": "test",
}  # fmt: skip
_NO_DATA = re.compile(r"(?i)^([._].*|readme.*|licen[cs]e.*|.*\.(md|crc|lock|metadata|sha256)|dataset_infos?\.json)$")
_MAX_FILES = 100_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file on this machine, and what messages call it."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Located:
    """The files of a source; `evaluation` is empty without a ready-made split, `unused` names splits left out."""

    train: tuple[SourceFile, ...]
    evaluation: tuple[SourceFile, ...]
    label: str
    """The last part of the source's name, for the manifest: it does not depend on the folder above."""
    unused: tuple[str, ...] = ()


def is_file_source(name: str) -> bool:
    """Return whether `name` names files instead of a Hugging Face dataset."""
    return (
        "://" in name or name.startswith((".", "/", "~")) or bool(_WILD.search(name))
        or Path(name).exists() or bool(format_of(name)) or name.count("/") > 1
        or ("/" not in name and bool(Path(name).suffix))
    )  # fmt: skip


def locate(name: str, download_folder: Path) -> Located:
    """Return the files that `name` stands for; those of a store are downloaded into `download_folder`."""
    if name.startswith(_STORES):
        files = _from_store(name, download_folder)
    elif name.startswith("file://"):
        return locate(name.removeprefix("file://"), download_folder)
    elif "://" in name:
        hint = "file, s3, az or gs; download anything else first"
        raise ConfigurationError("unsupported kind of URL", where=name, key="path", hint=hint)
    else:
        files = _local(name)
    train, evaluation, unused = _split(files, name)
    return Located(train, evaluation, PurePosixPath(name).name, unused)


def content_marks(name: str) -> list[str]:
    """Return what changes with the content of a source's files: digests here, the store's etags elsewhere."""
    if name.startswith(_STORES):
        _, found = _listing(name)
        return [f"{info.key} {info.size} {info.etag}" for info in found.values()]
    files = _local(name.removeprefix("file://"))
    return [f"{key} {digest_file(file.path)}" for key, file in files.items() if file.path.is_file()]


def _local(name: str) -> dict[str, SourceFile]:
    """Return the data files below `name` on this machine, by their path relative to it, in order."""
    path = Path(name).expanduser()
    if path.is_dir():
        found = {str(file.relative_to(path).as_posix()): file for file in sorted(path.rglob("*")) if file.is_file()}
    elif path.exists() or not _WILD.search(name):
        return {path.name: SourceFile(path, name)}
    else:
        root = Path(_root(str(path)))
        found = {
            file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name: file
            for file in map(Path, sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207 - a pattern of the user
            if file.is_file()
        }
    return {key: SourceFile(found[key], str(found[key])) for key in _data_files(found, name)}


def _root(pattern: str) -> str:
    """Return the folder above a pattern's first wildcard."""
    fixed = pattern[: match.start()] if (match := _WILD.search(pattern)) else pattern
    return fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else ".")


def _listing(name: str) -> tuple[str, dict[str, ObjectInfo]]:
    """Return the URL of the folder above the objects that `name` stands for, and the objects by key."""
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
    found = open_store(base).list(prefix)
    return base, {info.key: info for info in found if not pattern or _matches(info.key, pattern)}


def _from_store(name: str, folder: Path) -> dict[str, SourceFile]:
    """Download the data files below a URL; one at a time, each whole."""
    base, known = _listing(name)
    store = open_store(base)
    files = {}
    for number, key in enumerate(_data_files(known, name)):
        path = folder / f"{number:06d}" / PurePosixPath(key).name
        path.parent.mkdir(parents=True)
        with store.open(key, if_match=known[key].etag) as reader, path.open("wb") as file:
            buffer = memoryview(bytearray(_CHUNK_BYTES))
            while count := reader.readinto(buffer):
                file.write(buffer[:count])
        files[key] = SourceFile(path, f"{base}/{key}")
    return files


def _matches(key: str, pattern: str) -> bool:
    """Return whether a key matches; `*` stays inside a folder unless the pattern has `**`."""
    if "**" in pattern:
        return fnmatchcase(key, pattern.replace("**/", "*").replace("**", "*"))
    parts, patterns = key.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _data_files(keys: Iterable[str], name: str) -> list[str]:
    """Return the keys of data files in order; a file of unknown type, or of a second one, is an error."""
    chosen = sorted(key for key in keys if not any(_NO_DATA.match(part) for part in key.split("/")))
    if not chosen:
        raise ConfigurationError("holds no data file", where=name, key="path", hint="CSV, JSON, JSONL or Parquet")
    if len(chosen) > _MAX_FILES:
        raise InvalidInputError(f"more than {_MAX_FILES:,} files", where=name, key="path")
    kinds: dict[str, str] = {}
    for key in chosen:
        kind = format_of(key)
        if not kind:
            hint = "name the data files with a glob, such as FOLDER/*.parquet"
            raise ConfigurationError(f"{key!r} is of an unsupported file type", where=name, key="path", hint=hint)
        kinds.setdefault(kind, key)
    if len(kinds) > 1:
        what = f"holds files of different types: {', '.join(sorted(kinds.values()))}"
        raise ConfigurationError(what, where=name, key="path", hint="choose one type with a glob")
    return chosen


def _split_of(key: str) -> str:
    """Return the split that a file's name or folder names: `train`, `validation`, `test`, or none."""
    for part in reversed(key.lower().split("/")):
        words = [word for word in re.split(r"[^a-z0-9]+", part) if word in _SPLITS]
        if words:
            return _SPLITS[words[0]]
    return ""


def _split(
    files: dict[str, SourceFile], name: str
) -> tuple[tuple[SourceFile, ...], tuple[SourceFile, ...], tuple[str, ...]]:
    """Return files to train on, files to evaluate on, and the names of splits left out."""
    splits: dict[str, list[str]] = {}
    for key in files:
        splits.setdefault(_split_of(key), []).append(key)
    if len(files) == 1 or "train" not in splits or len(splits) == 1:
        return tuple(files.values()), (), ()
    if "" in splits:
        what = f"names splits, and {splits[''][0]!r} belongs to none of them"
        hint = "choose files with a glob, and those that evaluate with --evaluation"
        raise ConfigurationError(what, where=name, key="path", hint=hint)
    chosen = "validation" if "validation" in splits else "test"

    def of(split: str) -> Sequence[SourceFile]:
        return [files[key] for key in splits[split]]

    unused = tuple(split for split in splits if split not in {"train", chosen})
    return tuple(of("train")), tuple(of(chosen)), unused
