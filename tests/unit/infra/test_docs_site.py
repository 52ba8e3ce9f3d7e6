"""The documentation: each link and anchor leads somewhere, each page is in the navigation, and the site builds."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from infra.docs import reference
from tests.unit.infra.documented_commands import ROOT, pages

DOCS = ROOT / "docs"
GENERATED = {DOCS / path: text for path, text in reference.static_pages().items()}
PATHS = {*GENERATED, DOCS / "reference/commands.md"}
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:)([^)\s#]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    words = [re.sub(r"\]\([^)]*\)", "", heading).lower() for heading in headings]
    return {re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", heading).strip()) for heading in words}


def text_of(path: Path) -> str | None:
    return GENERATED.get(path) or (path.read_text("utf-8") if path.is_file() and path.suffix == ".md" else None)


@pytest.mark.parametrize("page", [*pages(), *GENERATED], ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_and_anchor_leads_somewhere(page: Path) -> None:
    text = text_of(page)
    assert text
    for target, anchor in LINK.findall(_CODE.sub("", text)):
        path = Path(os.path.normpath(page.parent / target)) if target else page
        assert path.exists() or path in PATHS, f"{target} does not exist"
        if anchor:
            assert anchor in anchors(text_of(path) or ""), f"{target}#{anchor}"


def test_the_kept_pages_are_those_of_the_code() -> None:
    stale = [path for path, text in reference.kept_pages().items() if (DOCS / path).read_text("utf-8") != text]
    assert stale == [], "made from the code: `make docs` writes them again"


def test_each_page_is_in_the_navigation_and_each_entry_exists() -> None:
    text = re.sub(r"!ENV \[.*?\]", "''", (ROOT / "mkdocs.yml").read_text("utf-8"))
    entries = re.findall(r"[\w/-]+(?:\.md|/(?=[\"]))", json.dumps(yaml.safe_load(text)["nav"]))
    known = {str(path.relative_to(DOCS)) for path in [*DOCS.rglob("*.md"), *PATHS] if path.suffix == ".md"}
    folders = tuple(entry for entry in entries if entry.endswith("/"))
    assert {entry for entry in entries if not entry.endswith("/")} <= known
    assert [page for page in sorted(known - set(entries)) if not page.startswith(folders)] == []


def test_the_reference_has_each_command_and_each_document_s_fields() -> None:
    commands = reference.commands_page()
    assert "## plumbline compare\n" in commands
    assert "### plumbline baseline accept\n" in commands
    assert "--anchor" in commands
    documents = GENERATED[DOCS / "reference/documents.md"]
    assert '| `verdict` | `"pass"`, `"drift"`, `"inconclusive"`, `"invalid"` | required |' in documents
    assert "### Cause\n" in documents
    limits = ast.parse((ROOT / "plumbline/schema/limits.py").read_text("utf-8")).body
    rows = re.findall(r"^\| `(\w+)` \| `[^|`]+` \| [^|]+ \|$", GENERATED[DOCS / "reference/limits.md"], re.MULTILINE)
    assert len(rows) == sum(isinstance(node, ast.Assign | ast.AnnAssign) for node in limits) > 1
    assert "gates" in json.loads(GENERATED[DOCS / "reference/suite.schema.json"])["properties"]


@pytest.mark.docs
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".venv/docs-tool"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "Made from the command line" in (tmp_path / "site/reference/commands/index.html").read_text("utf-8")
