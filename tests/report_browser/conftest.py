"""Real Chromium."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.conftest import CHROMIUM

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--enable-logging=stderr",
    "--v=0",
)  # fmt: skip


def find_browser():
    return next(filter(None, map(shutil.which, CHROMIUM)))


class Browser:
    def __init__(self, program, folder):
        self._program = program
        self._folder = folder

    def _run(self, *arguments):
        profile = self._folder / "profile"
        done = subprocess.run(
            [self._program, *FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True, text=True, timeout=300, check=True, env={**os.environ, "HOME": str(self._folder)},
        )  # fmt: skip
        shutil.rmtree(profile, ignore_errors=True)
        return done

    def open(self, page):
        """Return the page's DOM and console messages."""
        path = self._folder / "report.html"
        path.write_text(page, encoding="utf-8")
        done = self._run("--dump-dom", path.as_uri())
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def screenshot(self, page, width, height):
        path, picture = self._folder / "report.html", self._folder / "page.png"
        path.write_text(page, encoding="utf-8")
        self._run(f"--window-size={width},{height}", f"--screenshot={picture}", path.as_uri())
        return picture


@pytest.fixture
def browser(tmp_path):
    return Browser(find_browser(), tmp_path)
