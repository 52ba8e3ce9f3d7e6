"""Overlays are kept for the next upgrade, but one that was made otherwise is never taken for this one's."""

from __future__ import annotations

import sysconfig

import pytest

from plumbline.upgrade import PackageChange
from plumbline.upgrade.overlay import Overlays

CHANGE = PackageChange("numpy", "1.0", "2.0")


@pytest.fixture
def installed(monkeypatch):
    """The installs that were asked of pip, each with its arguments."""
    asked = []

    def install(self, requirement, target):
        asked.append((requirement, self._pip_arguments))
        target.mkdir()

    monkeypatch.setattr(Overlays, "_install", install)
    return asked


def test_an_overlay_is_installed_once(tmp_path, installed):
    assert Overlays(tmp_path).add(CHANGE) == Overlays(tmp_path).add(CHANGE)
    assert installed == [("numpy==2.0", ())]


def test_other_pip_arguments_make_another_overlay(tmp_path, installed):
    """`--index-url` of the CPU's wheels, then of CUDA's."""
    folders = {Overlays(tmp_path, pip_arguments=[f"--index-url={name}"]).add(CHANGE) for name in ("cpu", "cuda")}
    assert len(folders) == len(installed) == 2
    assert not any("index" in folder.name for folder in folders), "an index's address may hold a password"


def test_another_interpreter_makes_another_overlay(tmp_path, installed, monkeypatch):
    """What was compiled for one Python does not load in the next."""
    folders = {Overlays(tmp_path).add(CHANGE)}
    monkeypatch.setattr(sysconfig, "get_config_var", {"SOABI": "cpython-399-x86_64-linux-gnu"}.get)
    folders.add(Overlays(tmp_path).add(CHANGE))
    assert len(folders) == len(installed) == 2
    assert any("cpython-399" in folder.name for folder in folders)
