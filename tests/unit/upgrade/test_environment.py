"""What the environment holds is read as Python would import it, and refused only where it is not the current lock's."""

from __future__ import annotations

import pytest

from plumbline.errors import ConfigurationError
from plumbline.upgrade import changes_between, read_lock
from plumbline.upgrade.overlay import check_environment


def install(folder, name, version):
    """The metadata that pip leaves; none of a package whose install broke off."""
    about = folder / f"{name or 'broken'}-{version}.dist-info"
    about.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}"] if name else []
    (about / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))


def check(tmp_path, current, candidate):
    for name, text in {"current.txt": current, "candidate.txt": candidate}.items():
        (tmp_path / name).write_text(text)
    lock = read_lock(tmp_path / "current.txt")
    check_environment(lock, changes_between(lock, read_lock(tmp_path / "candidate.txt")), where="current.txt")


@pytest.mark.parametrize("installed", ["plumbline.test.yaml", "Plumbline_Test.YAML", "plumbline-test-yaml"])
@pytest.mark.parametrize("pinned", ["plumbline.test.yaml", "plumbline-test-yaml"])
def test_a_package_is_found_however_its_name_is_written(tmp_path, monkeypatch, installed, pinned):
    """`ruamel.yaml` says its name with a dot."""
    install(tmp_path / "site", installed, "0.18.6")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    check(tmp_path, f"{pinned}==0.18.6\n", f"{pinned}==0.19.0\n")
    with pytest.raises(ConfigurationError, match=r"pins plumbline-test-yaml 0.17, this environment holds 0.18.6"):
        check(tmp_path, f"{pinned}==0.17\n", f"{pinned}==0.19.0\n")


def test_of_two_installs_the_one_that_is_imported_counts(tmp_path, monkeypatch):
    install(tmp_path / "behind", "plumbline-test-a", "1.0")
    install(tmp_path / "first", "plumbline-test-a", "2.0")
    monkeypatch.syspath_prepend(str(tmp_path / "behind"))
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    check(tmp_path, "plumbline-test-a==2.0\n", "plumbline-test-a==3.0\n")


def test_an_install_that_broke_off_is_no_hindrance(tmp_path, monkeypatch):
    install(tmp_path / "site", None, "1.0")
    install(tmp_path / "site", "plumbline-test-a", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    check(tmp_path, "plumbline-test-a==1.0\n", "plumbline-test-a==2.0\n")
