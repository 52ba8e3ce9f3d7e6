"""Locks of every format are read as their tools wrote them, and a bad one is refused in one line.

uv 0.9, Poetry 2.5, pip 26 (`pip lock`) and pip-tools wrote the files beside this test; conda-lock's and pixi's are
excerpts in the shape of published files, for neither tool runs without a conda channel. Those in `conflicts`, `marked`,
`pixi-5` and `repository-folders` are short ones written by hand.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.cli.main import main
from plumbline.environments.locks import LockFiles, Pin, conda, load_lock, parse_lock, read_lock
from plumbline.schema.digest import digest_file, digest_lock
from plumbline.schema.errors import ConfigurationError
from plumbline.upgrade import PackageChange, changes_between
from plumbline.upgrade.report import constraint_lines, culprit_of
from tests.train.test_upgrade import SUITE
from tests.unit.upgrade.wheels import write_wheel

FILES = Path(__file__).with_name("locks")
IDNA = "https://files.pythonhosted.org/packages/76/c6/c88e154df9c4e1a2a66ccf0005a88dfb2650c1dffb6f5ce603dfbd452ce3/idna-3.10-py3-none-any.whl"


def versions(lock):
    return {name: pin.version for name, pin in lock.pins.items()}


def test_uv_lock_is_walked_from_the_project_along_the_markers_that_hold():
    lock = read_lock(FILES / "uv" / "uv.lock")
    assert versions(lock) == {
        "idna": "3.10", "iniconfig": "2.0.0", "python-dateutil": "2.9.0.post0", "six": "1.17.0", "sniffio": "1.3.0",
        "toml": "0.10.2",
    }  # fmt: skip
    assert lock.pins["idna"].url == IDNA
    assert len(lock.pins["six"].hashes) == 2
    assert lock.elsewhere == {"team-training": "0.1.0"}
    assert "toml" not in read_lock(FILES / "uv" / "uv.lock", extras=["dev"]).pins


def test_pylock_of_uv_and_of_pip():
    exported = read_lock(FILES / "pylock-uv" / "pylock.toml")
    assert versions(exported)["python-dateutil"] == "2.9.0.post0"
    assert "colorama" not in exported.pins
    assert exported.pins["idna"].url == IDNA
    locked = read_lock(FILES / "pylock-pip" / "pylock.toml")
    assert versions(locked)["requests"] == "2.32.3"
    assert all(pin.hashes for pin in locked.pins.values())


def test_requirements_of_pip_tools_with_hashes_and_a_url():
    lock = read_lock(FILES / "requirements" / "requirements.txt")
    assert versions(lock) == {
        "idna": "3.10", "python-dateutil": "2.9.0.post0", "six": "1.17.0", "sniffio": "1.3.0", "toml": "0.10.2",
    }  # fmt: skip
    assert len(lock.pins["six"].hashes) == 2
    assert lock.pins["idna"].requirement.startswith(f"idna @ {IDNA} --hash=sha256:")


def test_conda_lock_and_pixi_give_what_comes_from_the_index_and_name_the_rest(monkeypatch):
    monkeypatch.setattr(conda, "conda_platform", lambda: "linux-64")  # the platform of the excerpts
    lock = read_lock(FILES / "conda" / "conda-lock.yml")
    assert versions(lock) == {"requests": "2.31.0"}
    assert lock.elsewhere == {"ca-certificates": "2023.11.17-hbcca054_0"}
    lock = read_lock(FILES / "pixi" / "pixi.lock")
    assert versions(lock) == {"anyio": "4.12.0"}
    assert lock.elsewhere == {"ld-impl-linux-64": "2.45.1-default_hbd61a6d_102", "team-training": "0.1.0"}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("lock", "difference"),
    [
        ("conda/conda-lock.yml", ("2023.11.17", "2023.12.1", "ca-certificates")),
        ("conda/conda-lock.yml", ("hbcca054_0", "mkl_0", "ca-certificates")),
        ("pixi/pixi.lock", ("default_hbd61a6d_102", "mkl_102", "ld-impl-linux-64")),
        ("pixi-5/pixi.lock", ("default_hbd61a6d_102", "mkl_102", "ld-impl-linux-64")),
    ],
)
def test_a_package_of_conda_s_that_differs_is_named_and_no_pass(tmp_path, monkeypatch, capsys, lock, difference):
    """The build of a version decides what it does: libblas 3.9.0 is OpenBLAS in one and MKL in another."""
    monkeypatch.setattr(conda, "conda_platform", lambda: "linux-64")
    before, after = (tmp_path / side / Path(lock).name for side in ("before", "after"))
    text, (*changed, name) = (FILES / lock).read_text(), difference
    for path, content in ((before, text), (after, text.replace(*changed))):
        path.parent.mkdir()
        path.write_text(content)
    (tmp_path / "suite.toml").write_text(SUITE)
    arguments = ["upgrade", str(tmp_path / "suite.toml"), "--work", str(tmp_path / "work"), "--current", str(before)]
    assert main([*arguments, "--candidate", str(before)]) == 0
    assert "both locks pin the same packages" in capsys.readouterr().out
    pages = [tmp_path / "page.html", tmp_path / "summary.md"]
    reports = [f"--html={pages[0]}", f"--summary={pages[1]}"]
    assert main([*arguments, "--candidate", str(after), *reports]) == 3
    sentence = f"packages differ that no Python index serves, and were not tried: {name}"
    said = [capsys.readouterr().out, *(page.read_text() for page in pages)]
    assert [text.count(sentence) for text in said] == [1, 1, 1]


def test_requirements_with_includes_constraints_markers_and_options(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "lock.txt").write_text(
        "--index-url https://x\n-r more/base.txt\n-c bounds.txt\nTorch[cuda]==2.14.0 # why\n"
        "old==1 ; python_version < '3'\nnew==1 ; python_version >= '3' \\\n    --hash=sha256:AB12\nloose\n"
    )
    (tmp_path / "more" / "base.txt").write_text("-r deeper.txt\nNum_Py==2.0\n")
    (tmp_path / "more" / "deeper.txt").write_text("six===1.16.0\n")
    (tmp_path / "bounds.txt").write_text("loose==3.0\nunused==9\nopen>=2\n")
    files = load_lock(tmp_path / "lock.txt")
    assert set(files.files) == {"lock.txt", "more/base.txt", "more/deeper.txt", "bounds.txt"}
    lock = parse_lock(files)
    (note,) = lock.notes
    assert note.startswith("lock.txt: --index-url: not used; this machine's settings apply (hint: pass those")
    assert versions(lock) == {"torch": "2.14.0", "new": "1", "six": "1.16.0", "num-py": "2.0", "loose": "3.0"}
    assert lock.pins["new"].hashes == ("sha256:ab12",)


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_pixi_5_gives_what_comes_from_the_index_and_a_repository(monkeypatch):
    monkeypatch.setattr(conda, "conda_platform", lambda: "linux-64")
    lock = read_lock(FILES / "pixi-5" / "pixi.lock")
    assert versions(lock) == {"anyio": "4.12.0", "kernels": "0.3.0"}
    assert lock.pins["anyio"].hashes == ("sha256:dad2376a628f98eeca4881fc56cd06affd18f659b17a747d3ff0307ced94b1bb",)
    assert lock.pins["kernels"].url == f"git+https://host/team/kernels.git@{COMMIT}"
    assert lock.elsewhere == {"ld-impl-linux-64": "2.45.1-default_hbd61a6d_102", "team-training": "0.1.0"}


@pytest.mark.parametrize("name", ["uv.lock", "pixi.lock", "poetry.lock", "pylock.toml"])
def test_a_package_in_a_folder_of_a_repository_keeps_its_folder(monkeypatch, name):
    monkeypatch.setattr(conda, "conda_platform", lambda: "linux-64")
    pin = read_lock(FILES / "repository-folders" / name).pins["kernels"]
    assert pin.url == f"git+https://host/team/all.git@{COMMIT}#subdirectory=libs/kernels"


EXPORTED = """\
# This file was autogenerated by uv via the following command:
#    uv export --format requirements-txt
--extra-index-url https://me:secret@download.pytorch.org/whl/cpu
-e .
./libs/own ; python_version >= '3.8'
anyio==4.12.0 \\
    --hash=sha256:AB12
"""
FROZEN = f"""\
anyio==4.12.0
# Editable install with no version control (team-training==0.1.0)
-e /home/me/team
-e git+https://host/team/kernels.git@{COMMIT}#egg=kernels&subdirectory=python
tools @ git+ssh://git@host/team/tools.git@{COMMIT}
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_an_export_and_a_freeze_are_read_as_their_tools_write_them(tmp_path, encoding):
    """The team's own folder is in both environments; PowerShell writes UTF-16, other editors a mark before UTF-8."""
    (tmp_path / "export.txt").write_text(EXPORTED, encoding=encoding)
    (tmp_path / "freeze.txt").write_text(FROZEN, encoding=encoding)
    exported, frozen = (read_lock(tmp_path / f"{name}.txt") for name in ("export", "freeze"))
    assert versions(exported) == {"anyio": "4.12.0"}
    assert exported.notes[0].startswith("export.txt: --extra-index-url: not used")
    assert "secret" not in exported.notes[0]
    assert versions(frozen) == {"anyio": "4.12.0", "kernels": "", "tools": ""}
    assert frozen.pins["kernels"].requirement.startswith(f"kernels @ git+https://host/team/kernels.git@{COMMIT}#egg=")


BAD = {
    "loose": ("lock.txt", "torch>=2\n", "pins no version"),
    "empty": ("lock.txt", "\n", "pins nothing"),
    "editable without a name": ("lock.txt", "-e git+https://host/a@main\n", "names no package"),
    "only a folder": ("lock.txt", "-e .\n", "pins nothing"),
    "archive without a name": ("lock.txt", "./a-1-py3-none-any.whl\n", "is not a requirement"),
    "branch": ("lock.txt", "a @ git+https://host/a@main\n", "a: 'main' is a moving reference"),
    "tag": ("lock.txt", "a @ git+ssh://git@host/team/a.git@v1.2#subdirectory=b\n", "a: 'v1.2' is a moving reference"),
    "branch of two words": ("lock.txt", "a @ git+ssh://git@host/a@team/x\n", "a: 'team/x' is a moving reference"),
    "short commit": ("lock.txt", "a @ git+https://host/a@0123abc\n", "'0123abc' is a moving reference"),
    "no commit": ("lock.txt", "a @ git+https://host/a\n", "a: names no commit"),
    "twice": ("lock.txt", "a==1\na==2\n", "line 2 excludes a 1, which another line pins"),
    "no requirement": ("lock.txt", "a==1\n!!!\n", "is not a requirement"),
    "wildcard": ("lock.txt", "a==1.*\n", "pins no version"),
    "missing include": ("lock.txt", "-r gone.txt\n", "cannot be read"),
    "loop": ("lock.txt", "-r lock.txt\na==1\n", "includes itself"),
    "include by URL": ("lock.txt", "-r https://x/y.txt\n", "a URL"),
    "two archives of a version": (
        "poetry.lock",
        "".join(
            f"[[package]]\nname = 'kern'\nversion = '2.0'\ngroups = ['main']\nfiles = [{{ hash = 'sha256:{name}' }}]\n"
            for name in "ab"
        ),
        "kern 2.0 and 2.0 both apply here",
    ),
    "no TOML": ("uv.lock", "[[", "cannot be parsed"),
    "no project": ("uv.lock", "version = 1\n", "names no project"),
    "no YAML": ("conda-lock.yml", "a: [", "cannot be parsed"),
    "deep TOML": ("pylock.toml", f"a = {'[' * 5000}{']' * 5000}", "nested too deep"),
    "deep YAML": ("pixi.lock", "[" * 5000, "nested too deep"),
    "other shape": ("poetry.lock", "package = 3\n", "is not a poetry.lock file"),
    "other platform": ("conda-lock.yml", "package: []\n", "has no packages for"),
    "unknown format": ("Pipfile.lock", "{}", "unknown lock format"),
    "Pipfile": ("Pipfile.lock", "{}", "pipenv requirements --hash"),
    "pdm": ("pdm.lock", "{}", "pdm export"),
    "environment of conda": ("environment.yml", "dependencies: [python]\n", "conda-lock -f environment.yml"),
    "explicit list of conda": (
        "lock.txt",
        "# platform: linux-64\n@EXPLICIT\nhttps://c/a-1-0.conda\n",
        "--format=freeze",
    ),
    "bad pylock": ("pylock.toml", "lock-version = '1.0'\n", "created-by"),
}


@pytest.mark.parametrize(("name", "text", "reason"), BAD.values(), ids=BAD)
def test_a_bad_lock_is_one_line_and_exit_code_2(tmp_path, capsys, name, text, reason):
    (tmp_path / "suite.toml").write_text(SUITE)
    (tmp_path / name).write_text(text)
    arguments = ["upgrade", str(tmp_path / "suite.toml"), "--candidate", str(tmp_path / name), "--json"]
    assert main([*arguments, "--work", str(tmp_path / "work")]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert '"exit_code": 2' in said.out
    assert not (tmp_path / "work").exists()


def test_changes_are_compared_as_versions_and_name_what_comes_and_goes():
    def pins(**versions):
        return {name: Pin(name=name, version=version) for name, version in versions.items()}

    found = changes_between(pins(a="1.0", b="1", c="1"), pins(a="1.0.0", b="2", d="1"))
    assert [str(change) for change in found] == ["b 1 → 2", "c 1 → absent", "d absent → 1"]
    assert all(isinstance(change, PackageChange) for change in found)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (("a",), ("b",), ["kern 2.0 → 2.0 (different archives)"]),
        (("a", "b"), ("c", "d"), ["kern 2.0 → 2.0 (different archives)"]),
        (("a",), ("a", "b"), []),
        (("a", "b"), ("b", "c"), []),
        ((), ("b",), []),
        (("a",), (), []),
    ],
)
def test_a_version_that_was_built_again_is_a_change(before, after, shown):
    """An index of the team's own may serve other code as the same version; archives may be added to a release."""
    ours, theirs = (
        Pin(name="kern", version="2.0", hashes=tuple(f"sha256:{one}" for one in side)) for side in (before, after)
    )
    changes = changes_between({"kern": ours}, {"kern": theirs})
    assert [str(change) for change in changes] == shown
    if shown:
        lines = constraint_lines([culprit_of("numerics", list(changes))])
        assert lines == (f"kern==2.0 {' '.join(f'--hash=sha256:{one}' for one in before)}",)


def test_a_url_that_changes_is_a_change():
    before = {"a": Pin(name="a", url="git+https://host/a@1")}
    after = {"a": Pin(name="a", url="git+https://host/a@2")}
    (change,) = changes_between(before, after)
    assert str(change) == "a host/a@1 → host/a@2"


@pytest.mark.parametrize(
    "line", ["-e git+https://me:secret@host/a", "a b @ https://me:secret@host/a", "a @ https://me:secret@h/a.zip"]
)
def test_a_password_in_a_line_is_not_repeated(line):
    with pytest.raises(ConfigurationError) as caught:
        parse_lock(LockFiles(name="lock.txt", files={"lock.txt": f"{line}\n"}))
    assert "secret" not in str(caught.value)


def test_a_lock_travels_as_json():
    files = load_lock(FILES / "uv" / "uv.lock")
    assert type(files).model_validate_json(files.model_dump_json()) == files
    lock = parse_lock(files)
    assert type(lock).model_validate_json(lock.model_dump_json()) == lock


def test_an_unknown_group_is_no_reason_to_pass():
    with pytest.raises(ConfigurationError, match="environment 'gpu'"):
        read_lock(FILES / "pixi" / "pixi.lock", extras=["gpu"])


OLD = {"python_version": "3.12", "python_full_version": "3.12.4", "implementation_version": "3.12.4"}
NEW = {"python_version": "3.13", "python_full_version": "3.13.1", "implementation_version": "3.13.1"}
"""Markers of two interpreters of a team, whatever this process runs on."""


@pytest.mark.parametrize("name", ["requirements.txt", "uv.lock", "poetry.lock", "pylock.toml"])
def test_a_lock_is_read_for_the_interpreter_whose_environment_it_is(name):
    files = load_lock(FILES / "marked" / name)
    assert set(parse_lock(files, markers=OLD).pins) == {"old"}
    assert set(parse_lock(files, markers=NEW).pins) == {"new"}


def lock_of(name: str, text: str, **options):
    return parse_lock(LockFiles(name=name, files={name: text}), **options)


POETRY_1 = """
[[package]]
name = "Hub"
version = "1.0"
category = "main"
optional = false
[package.dependencies]
ring = "*"

[[package]]
name = "flash-kern"
version = "2.0"
optional = true
[package.dependencies]
Launch_Er = {version = "*", optional = true}

[[package]]
name = "launch-er"
version = "3.0"
optional = true

[[package]]
name = "ring"
version = "4.0"
optional = false

[[package]]
name = "docs-tool"
version = "5.0"
optional = true

[[package]]
name = "checker"
version = "6.0"
category = "dev"
optional = false

[extras]
docs = ["docs-tool"]
gpu = ["flash-kern (>=2)"]

[metadata]
lock-version = "1.1"
python-versions = "^3.9"
content-hash = "x"
[metadata.files]
Hub = [{file = "hub-1.0.tar.gz", hash = "sha256:aa"}]
"""


@pytest.mark.parametrize(
    ("extras", "expected"),
    [
        ((), {"hub", "ring"}),
        (("gpu",), {"hub", "ring", "flash-kern", "launch-er"}),
        (("docs", "dev"), {"hub", "ring", "docs-tool", "checker"}),
        (None, {"hub", "ring", "flash-kern", "launch-er", "docs-tool", "checker"}),
    ],
)
def test_a_lock_of_poetry_1_has_its_main_packages_and_those_of_chosen_extras(extras, expected):
    lock = lock_of("poetry.lock", POETRY_1, extras=extras)
    assert set(lock.pins) == expected
    assert lock.pins["hub"].hashes == ("sha256:aa",)


@pytest.mark.parametrize(
    "change", [("optional = true", "variant = 'cpu'"), ("content-hash", "hashes = {Hub = ['aa']}\ncontent-hash")]
)
def test_a_field_that_the_reader_of_poetry_does_not_know_is_refused(change):
    with pytest.raises(ConfigurationError, match=r"(package.variant|metadata.hashes): is not a field that this reader"):
        lock_of("poetry.lock", POETRY_1.replace(*change, 1))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.lock", "# generated by rye\n-e file:.\nhub==1.0\n"),
        ("requirements-dev.lock", "hub==1.0\n"),
        ("gpu.requirements.lock", "hub==1.0\n"),
        ("train.py.lock", ("version = 1\n[manifest]\nrequirements = [{ name = 'hub' }]\n[[package]]\nname = 'hub'\n"
         "version = '1.0'\nsource = { registry = 'https://pypi.example/simple' }\n")),
    ],
)  # fmt: skip
def test_a_lock_is_read_by_its_tool_s_name(name, text):
    assert versions(lock_of(name, text)) == {"hub": "1.0"}


def test_the_line_ends_of_a_checkout_change_no_digest_of_a_lock(tmp_path):
    unix, windows = tmp_path / "unix.txt", tmp_path / "windows.txt"
    unix.write_bytes(b"hub==1.0\nring==2.0\n")
    windows.write_bytes(b"hub==1.0\r\nring==2.0\r\n")
    assert digest_lock(unix) == digest_lock(windows) == digest_file(unix)
    assert read_lock(windows).pins == read_lock(unix).pins


def test_all_of_several_extras_that_exclude_each_other_are_refused():
    with pytest.raises(ConfigurationError, match=r"conflicts: cpu and gpu conflict \(hint: choose with --extra NAME\)"):
        read_lock(FILES / "conflicts" / "uv.lock")
    excluding = """
    [[package]]
    name = "kern"
    version = "2.0"
    python-versions = "*"
    groups = ["main"]
    markers = "extra == 'cpu' and extra != 'gpu'"
    """
    with pytest.raises(ConfigurationError, match="exclude each other"):
        lock_of("poetry.lock", excluding)
    assert versions(lock_of("poetry.lock", excluding, extras=["cpu"])) == {"kern": "2.0"}


def test_a_uv_lock_of_a_script_or_of_a_workspace_without_a_project_has_its_requirements():
    text = """
    [manifest]
    requirements = [{ name = "kern", specifier = ">=1" }]
    [manifest.dependency-groups]
    dev = [{ name = "checker" }]
    [[package]]
    name = "kern"
    version = "2.0"
    resolution-markers = ["python_full_version < '3.0'"]
    [[package]]
    name = "kern"
    version = "2.1"
    resolution-markers = ["python_full_version >= '3.0'"]
    [[package]]
    name = "checker"
    version = "1.0"
    """
    assert versions(lock_of("uv.lock", text)) == {"kern": "2.1", "checker": "1.0"}
    assert versions(lock_of("uv.lock", text, extras=())) == {"kern": "2.1"}


@pytest.mark.parametrize(("extras", "expected"), [(None, {"kern", "checker"}), ((), {"kern"})])
def test_the_default_groups_of_a_pylock_belong_to_every_choice(extras, expected):
    text = """
    lock-version = "1.0"
    created-by = "a test"
    dependency-groups = ["dev"]
    default-groups = ["main"]
    [[packages]]
    name = "kern"
    version = "2.0"
    marker = "'main' in dependency_groups"
    wheels = [{ name = "kern-2.0-py3-none-any.whl", url = "https://a.b/k.whl", hashes = { sha256 = "aa" } }]
    [[packages]]
    name = "checker"
    version = "1.0"
    marker = "'dev' in dependency_groups"
    wheels = [{ name = "checker-1.0-py3-none-any.whl", url = "https://a.b/c.whl", hashes = { sha256 = "bb" } }]
    """
    assert set(lock_of("pylock.toml", text, extras=extras).pins) == expected


def test_a_repository_of_a_conda_lock_stays_one():
    text = f"""
    package:
    - {{name: acme, version: '1.0', manager: pip, platform: {conda.conda_platform()}, category: main,
       url: 'git+https://host/acme.git@{COMMIT}', hash: {{sha256: {COMMIT}}}}}
    """
    assert lock_of("conda-lock.yml", text).pins["acme"].requirement == f"acme @ git+https://host/acme.git@{COMMIT}"


@pytest.mark.parametrize(
    ("lock", "bounds", "pinned"),
    [
        ("-c bounds.txt\nkern==2.0\n", "kern==1.0\n", ""),
        ("-c bounds.txt\nkern==2.0\n", "kern<2\n", ""),
        ("-c bounds.txt\nkern==2.0\n", "kern>=2\n", "2.0"),
        ("-c bounds.txt\nkern==2.0\n", "kern==1.0 ; python_version < '3'\n", "2.0"),
        ("-c bounds.txt\nkern==2.0+cpu\n", "kern==2.0\n", "2.0+cpu"),
        ("-c bounds.txt\nkern>=2\n", "kern==1.0\n", ""),
        ("-c bounds.txt\nkern>=2\n", "kern==2.0\n", "2.0"),
        ("-c bounds.txt\nkern\n", "kern==1.0\nkern<1\n", ""),
        ("-r bounds.txt\nkern==2.0\n", "kern<2\n", ""),
        ("-r bounds.txt\nkern==2.0\n", "kern>=2\n", "2.0"),
        ("-r bounds.txt\nkern==2.0\n", "kern==2.0+cpu\n", "2.0+cpu"),
        ("-c bounds.txt\nkern==2.0\n", "kern==2.0+cpu\n", "2.0+cpu"),
    ],
)
def test_a_pin_that_a_line_excludes_is_refused_as_pip_refuses_it(lock, bounds, pinned):
    """`pip install --dry-run -r lock.txt` of pip 26 installs the same version, or exits with 1."""
    files = LockFiles(name="lock.txt", files={"lock.txt": lock, "bounds.txt": bounds})
    if pinned:
        assert versions(parse_lock(files)) == {"kern": pinned}
        return
    with pytest.raises(
        ConfigurationError, match=r"(lock|bounds)\.txt: line \d excludes kern \d\.0, which another line pins"
    ):
        parse_lock(files)


HASHES = {
    "the first line has all": ("kern==2.0 {a} {b}\nkern==2.0 {a}\n", "", "a"),
    "the last line has all": ("kern==2.0 {a}\nkern==2.0 {a} {b}\n", "", "a"),
    "different spelling": ("kern==2.0 {a}\nKern===2.0 {b} {a}\n", "", "a"),
    "only the first line has one": ("kern==2.0 {a}\nkern==2.0\n", "", "a"),
    "included": ("kern==2.0 {a} {b}\n-r more.txt\n", "kern==2.0 {b}\n", "b"),
    "the constraint has another": ("-c more.txt\nkern==2.0 {a}\n", "kern==2.0 {b}\n", ""),
    "the constraint has fewer": ("-c more.txt\nkern==2.0 {a} {b}\n", "kern==2.0 {a}\n", "a"),
    "only the constraint has one": ("-c more.txt\nkern==2.0\n", "kern==2.0 {a}\n", "a"),
    "the constraint pins": ("-c more.txt\nkern\n", "kern==2.0 {a}\n", "a"),
    "the line of a range has one": ("-c more.txt\nkern>=2 {a} {b}\n", "kern==2.0\n", "ab"),
    "none in common": ("kern==2.0 {a}\nkern==2.0 {b}\n", "", ""),
}


def hashed_lock(case: str, **hashes: str) -> LockFiles:
    """Return the lock of a case, with these hashes at their places."""
    options = {name: f"--hash=sha256:{value}" for name, value in hashes.items()}
    texts = [text.format(**options) for text in HASHES[case][:2]]
    return LockFiles(name="lock.txt", files=dict(zip(("lock.txt", "more.txt"), texts, strict=True)))


@pytest.mark.parametrize("case", HASHES)
def test_a_package_of_two_lines_is_built_from_the_archives_that_both_allow(case):
    files, expected = hashed_lock(case, a="aa", b="bb"), HASHES[case][2]
    if expected:
        assert parse_lock(files).pins["kern"].hashes == tuple(f"sha256:{name * 2}" for name in expected)
        return
    with pytest.raises(ConfigurationError, match=r"txt: line \d excludes kern 2\.0, which another line pins"):
        parse_lock(files)


@pytest.mark.long
@pytest.mark.parametrize("case", HASHES)
def test_pip_takes_an_archive_that_the_pin_allows(tmp_path, case):
    """Of two builds of a version pip prefers the second; uv takes what the last line allows, whatever others say."""
    write_wheel(tmp_path, "kern", "2.0", {"kern.py": ""})
    first = tmp_path / "kern-2.0-py3-none-any.whl"
    second = tmp_path / "kern-2.0-1-py3-none-any.whl"
    second.write_bytes(first.read_bytes() + b"\0")
    hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in (first, second)]
    links = zip((first, second), hashes, strict=True)
    (tmp_path / "page.html").write_text("".join(f"<a href='{w.name}#sha256={h}'>{w.name}</a>" for w, h in links))
    files = hashed_lock(case, a=hashes[0], b=hashes[1])
    for name, text in files.files.items():
        (tmp_path / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-index", "--no-deps"]
    command = [*pip, "--find-links=page.html", "--require-hashes", "--report=-", "-r", "lock.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if not HASHES[case][2]:
        assert "DO NOT MATCH THE HASHES" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    (installed,) = json.loads(done.stdout)["install"]
    taken = installed["download_info"]["archive_info"]["hashes"]["sha256"]
    assert f"sha256:{taken}" in parse_lock(files).pins["kern"].hashes


def test_a_freeze_in_conda_pins_versions_instead_of_conda_s_folders():
    built = "file:///home/conda/feedstock_root/build_artifacts/numpy_1707225342954/work"
    frozen = f"numpy @ {built}/dist/numpy-1.26.4-cp311-cp311-linux_x86_64.whl\n"
    assert lock_of("freeze.txt", frozen).pins["numpy"].requirement == "numpy==1.26.4"
    with pytest.raises(ConfigurationError, match="pip list --format=freeze"):
        lock_of("freeze.txt", f"certifi @ {built}/certifi\n")


def test_what_a_freeze_says_of_plumbline_and_of_folders_is_named_and_not_built():
    lock = lock_of(
        "freeze.txt", f"-e git+https://host/plumbline@{COMMIT}#egg=plumbline_training\n-e /home/me/team\nkern==2.0\n"
    )
    assert versions(lock) == {"kern": "2.0"}
    assert [note.partition(": not judged")[0] for note in lock.notes] == [
        "freeze.txt: /home/me/team", "freeze.txt: plumbline-training",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["uv/uv.lock", "poetry/poetry.lock", "pylock-uv/pylock.toml", "conda/conda-lock.yml"])
def test_an_extra_that_the_lock_does_not_have_is_refused(monkeypatch, name):
    monkeypatch.setattr(conda, "conda_platform", lambda: "linux-64")
    with pytest.raises(ConfigurationError, match="has no extra or group 'gpus'"):
        read_lock(FILES / name, extras=["gpus"])


@pytest.mark.parametrize("lock", ["uv-conflicts/uv.lock", "poetry-extras/poetry.lock"])
def test_a_lock_has_the_packages_that_its_own_tool_exports(lock):
    """uv 0.13 and Poetry 2.5 wrote the lock, and exported it once for each choice, which the file's name tells."""
    exports = sorted((FILES / lock).parent.glob("*.txt"))
    assert len(exports) > 2
    for export in exports:
        chosen = () if export.stem == "none" else export.stem.split("-")
        assert versions(read_lock(FILES / lock, extras=chosen)) == versions(read_lock(export)), export.name


KEPT = json.loads((FILES / "kept.json").read_text("utf-8"))
"""By tool and project: the lock that the tool wrote, and by the chosen extras and groups what it exports of it.

uv 0.13, Poetry 2.5, PDM 2.29 (`pylock.toml`), pip-tools 7.6, Pipenv (`pipenv requirements`) and pip 26 (`pip lock`)
locked projects of `test_lock_tools.py` on Linux from wheels written by hand. pip-tools and Pipenv wrote a lock for each
choice, and pip tells what it installs from it.
"""


@pytest.mark.parametrize(
    ("tool", "project", "choice"),
    [
        (tool, name, choice)
        for tool, locks in KEPT.items()
        for name, lock in locks.items()
        for choice in lock["choices"]
    ],
)
def test_a_kept_lock_has_the_packages_that_its_tool_installs(tmp_path, tool, project, choice):
    kept = KEPT[tool][project]
    texts = kept["lock"]
    path = tmp_path / kept["file"]
    path.write_text(texts if isinstance(texts, str) else texts[choice])
    extras = choice.split() if isinstance(texts, str) else None
    assert versions(read_lock(path, extras=extras)) == kept["choices"][choice]


def test_an_archive_by_its_address_alone_is_pinned_as_uv_exports_it_and_pip_takes_it():
    lock = lock_of("requirements.txt", "https://host/kern-2.0-py3-none-any.whl ; python_version >= '3.8'\nplain==1.0\n")
    assert versions(lock) == {"kern": "2.0", "plain": "1.0"}
    assert lock.pins["kern"].url == "https://host/kern-2.0-py3-none-any.whl"


def test_an_archive_by_its_path_is_no_archive_of_an_index():
    text = """
[[package]]
name = "kern"
version = "2.0"
groups = ["main"]
files = [{ file = "kern-2.0-py3-none-any.whl", hash = "sha256:%s" }]

[package.source]
type = "file"
url = "../wheels/kern-2.0-py3-none-any.whl"
"""
    with pytest.raises(ConfigurationError, match=r"\.\./wheels/kern-2\.0-py3-none-any\.whl is a path of the machine"):
        lock_of("poetry.lock", text % ("a" * 64))


UV_FOR = """
requires-python = "%s"
supported-markers = [%s]
[[package]]
name = "team"
source = { virtual = "." }
dependencies = [{ name = "kern" }]
[[package]]
name = "kern"
version = "2.0"
"""
POETRY_FOR = """
[[package]]
name = "kern"
version = "2.0"
python-versions = "*"
[metadata]
python-versions = "%s"
"""


@pytest.mark.parametrize(("name", "text", "is_read"), [
    ("uv.lock", UV_FOR % (">=3.10", ""), True),
    ("uv.lock", UV_FOR % (">=3.13", ""), False),
    ("uv.lock", UV_FOR % (">=3.10", "\"sys_platform == 'plan9'\""), False),
    ("uv.lock", UV_FOR % (">=3.10", "\"sys_platform == 'plan9'\", \"sys_platform != 'plan9'\""), True),
    ("poetry.lock", POETRY_FOR % "*", True),
    ("poetry.lock", POETRY_FOR % ">=3.13", False),
    ("poetry.lock", POETRY_FOR % "^3.13", False),
    ("poetry.lock", POETRY_FOR % "^3.11", True),
    ("poetry.lock", POETRY_FOR % "~3.11", False),
    ("poetry.lock", POETRY_FOR % "~3.12.1", True),
    ("poetry.lock", POETRY_FOR % "~2.7 || ^3.12", True),
    ("poetry.lock", POETRY_FOR % "3.12.*", True),
])  # fmt: skip
def test_a_lock_for_other_interpreters_is_refused_as_its_tool_refuses_it(name, text, is_read):
    """uv and Poetry drop markers that hold for all interpreters of a lock: for others, packages would be missing."""
    if is_read:
        assert versions(lock_of(name, text, markers=OLD)) == {"kern": "2.0"}
        return
    with pytest.raises(ConfigurationError, match=r"is a lock for .*, not for this interpreter"):
        lock_of(name, text, markers=OLD)


@pytest.mark.parametrize("name", ["Fast_GPU", "fast-gpu"])
def test_an_extra_is_chosen_by_any_spelling_of_its_name(name):
    text = UV_FOR % (">=3.10", "") + '[package.optional-dependencies]\nfast-gpu = [{ name = "kern" }]\n'
    text = text.replace(
        'dependencies = [{ name = "kern" }]', 'optional-dependencies = { fast-gpu = [{ name = "kern" }] }'
    )
    text = text.partition("[package.optional-dependencies]")[0]
    assert versions(lock_of("uv.lock", text, extras=[name])) == {"kern": "2.0"}


def test_an_extra_is_said_not_to_be_used_of_a_requirements_file():
    """The other lock of an upgrade may have it: a file of one choice is not refused, and not passed off as chosen."""
    lock = lock_of("lock.txt", "kern==2.0\n", extras=["gpu"])
    assert lock.notes == ("lock.txt: --extra gpu: not used; a requirements file has no extras",)
    assert lock_of("lock.txt", "kern==2.0\n").notes == ()


def test_a_package_that_a_freeze_names_by_its_folder_is_said_not_to_be_judged():
    """`pip install ./team` is frozen so: the folder is the same in both locks, whatever it holds."""
    lock = lock_of("freeze.txt", "team @ file:///home/me/team\nkern==2.0\n")
    assert versions(lock) == {"kern": "2.0"}
    assert lock.notes == (
        "freeze.txt: team @ file:///home/me/team: not judged; a folder is the team's own code, left as installed",
    )


def test_an_archive_beside_a_pixi_lock_is_no_folder_of_the_team():
    text = f"""
    version: 6
    environments:
      default:
        packages:
          {conda.conda_platform()}:
          - pypi: ./wheels/kern-2.0-py3-none-any.whl
    packages:
    - {{pypi: ./wheels/kern-2.0-py3-none-any.whl, name: kern, version: '2.0'}}
    """
    with pytest.raises(ConfigurationError, match=r"wheels/kern-2\.0-py3-none-any\.whl is a path of the machine"):
        lock_of("pixi.lock", text)
