"""MkDocs hooks: pages made from the code, folders in the navigation, links to files outside of docs/."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[([^\]]*)\]\((\.\.?/[^)#\s]+)(#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.plumbline")
_generated: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Make the generated pages in a process without MkDocs' packages; put the pages of folders into the navigation."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(ROOT / "infra" / "docs" / "reference.py")]
    made = subprocess.run(command, env=environment, capture_output=True, check=True, cwd=ROOT)
    _generated.update(json.loads(made.stdout))
    docs = Path(config["docs_dir"])
    known = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    known |= {path for path in _generated if path.endswith(".md")}
    named = set(re.findall(r"[\w/-]+\.md", json.dumps(config["nav"])))
    config["nav"] = [_with_folders(entry, sorted(known - named)) for entry in config["nav"]]
    return config


def _with_folders(entry: Any, pages: list[str]) -> Any:
    """Return an entry of the navigation with each folder's pages; it may contain entries of its own."""
    if isinstance(entry, dict):
        return {title: _with_folders(parts, pages) for title, parts in entry.items()}
    if isinstance(entry, list):
        return [page for part in map(_with_folders, entry, [pages] * len(entry))
                for page in (part if isinstance(part, list) else [part])]  # fmt: skip
    return [page for page in pages if page.startswith(entry)] if entry.endswith("/") else entry


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for path, text in _generated.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Let a link to a file outside of docs/ lead to the repository; without its address only the words stay."""
    folder = (Path(config["docs_dir"]) / page.file.src_uri).parent
    repository = config["extra"]["repository"]

    def outside(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(folder / target))
        if path.is_relative_to(config["docs_dir"]):
            return match[0]
        if not path.exists():
            log.warning("%s: %s does not exist", page.file.src_uri, target)
        kind = "tree" if path.is_dir() else "blob"
        return f"[{words}]({repository}/{kind}/main/{path.relative_to(ROOT)}{anchor})" if repository else words

    return LINK.sub(outside, markdown)
