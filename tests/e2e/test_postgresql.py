"""The local stack on an installed PostgreSQL: a whole round, and nothing left over."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import assert_nothing_left, small

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgresql]


@pytest.fixture
def folder(tmp_path_factory):
    """A folder that PostgreSQL's own user may enter: as root, the server runs as that one."""
    folder = tmp_path_factory.mktemp("round")
    for one in (folder, folder.parent, folder.parent.parent):
        one.chmod(0o755)
    return folder


def test_a_round_on_postgresql(folder, start):
    running = start(small("postgres", folder), "--database", "postgresql")
    code, verdict = running.verdict()
    assert (code, verdict["verdict"]) == (0, "pass"), "".join(running.lines)
    assert (folder / ".plumbline/postgres/PG_VERSION").is_file()
    assert not list((folder / ".plumbline").rglob("prefect.db"))
    assert_nothing_left(folder)
