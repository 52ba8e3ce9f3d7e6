"""Stacks of a team: other versions of the libraries, in an environment without Plumbline."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import platform
import re
import sys
import types
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plumbline.train
from plumbline.environments.installed import Base, team_base
from plumbline.environments.installer import Installer
from plumbline.environments.interpreter import SUPPORTED
from plumbline.environments.package_store import PackageStore
from plumbline.environments.virtual_environments import Environments
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.record import read_record
from plumbline.schema.spec import ModelSpec, write_spec
from plumbline.train.compat import torch as compat_torch
from plumbline.train.compat.transformers import attention_of, use_attention_formula
from plumbline.train.models.description import describe_model
from plumbline.train.models.families import build_family
from plumbline.train.numerics import apply_settings
from plumbline.train.selfcheck import judge_windows, trained
from plumbline.upgrade.answer import Trial
from plumbline.upgrade.session import UpgradeSettings, local_trials
from tests.commands import error_line, run
from tests.flows.small_suite import small_suite
from tests.train.conftest import MODEL, Workshop

ROOT = Path(__file__).parents[2]
CODE = ROOT / "plumbline"
COMPAT = (CODE / "train" / "compat", CODE / "schema" / "base.py")
LIBRARIES = {"torch", "transformers", "tokenizers", "safetensors", "numpy", "np", "pa", "pyarrow", "pydantic"}
NOT_NEEDED = re.compile(
    r"(?i)(__|_?distutils|plumbline|prefect|boto|azure|aws|moto|datasets|pip|zz_|.*\\.(pth|egg-link)$)"
)
"""Files of an environment that a team's own has not: Plumbline, and what a worker has for Prefect and for stores."""
NEWER = {
    "datetime": {"UTC"}, "enum": {"StrEnum", "verify"}, "typing": {"Self", "Never", "assert_never", "override"},
    "hashlib": {"file_digest"}, "contextlib": {"chdir"}, "itertools": {"batched"}, "asyncio": {"TaskGroup", "timeout"},
}  # fmt: skip
"""Names of the standard library that Python 3.10 has not."""


READERS = {
    "plumbline/environments/interpreter.py",  # the check at the start, and its range
    "plumbline/schema/extras.py",  # the message about a missing extra
    "plumbline/environments/selfcheck.py",  # the version of torch, for the doctor's report
    "plumbline/night/doctor/place.py",  # the version of CUDA, for the same
    "plumbline/local/database.py",  # the name of a cluster's folder
    "plumbline/environments/installed.py",  # the markers of locks
    "plumbline/train/models/families.py",  # the message about a model that cannot be built
    "plumbline/train/machine/fingerprint.py",  # the record
    "plumbline/train/learn.py",  # the identity of a checkpoint
    "plumbline/train/selfcheck.py",  # the range of each set of golden digests
}
"""Files that may read a library's version, to say it and not to branch by it."""


def _of_libraries(tree: ast.AST) -> set[str]:
    """Return the names of a module that are libraries, or were imported from one."""
    names = set(LIBRARIES)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias for alias in node.names if alias.name.partition(".")[0] in LIBRARIES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES:
            found = node.names
        else:
            continue
        names |= {(alias.asname or alias.name).partition(".")[0] for alias in found}
    return names


def _name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _asks(node: ast.Call, libraries: set[str]) -> bool:
    """Return whether a call asks what a library has."""
    inside = [part for argument in node.args for part in ast.walk(argument)]
    texts = {str(part.value).partition(".")[0] for part in inside if isinstance(part, ast.Constant)}
    name = _name_of(node.func)
    if name in {"hasattr", "signature"} or (name == "getattr" and len(node.args) > 2):
        return bool({_name_of(part) for part in inside} & libraries)
    return name == "find_spec" and bool(texts & LIBRARIES)


def _tries(node: ast.Try, libraries: set[str]) -> bool:
    """Return whether a statement finds out by an error what a library has not."""
    caught = [part for handler in node.handlers for part in ast.walk(handler.type or ast.Constant(None))]
    if {_name_of(part) for part in caught} - {"", "ImportError", "ModuleNotFoundError", "AttributeError"}:
        return False  # more errors than those of a missing name
    inside = [part for line in node.body for part in ast.walk(line)]
    modules = {(part.module or "").partition(".")[0] for part in inside if isinstance(part, ast.ImportFrom)}
    return bool(caught) and bool((modules | {_name_of(part) for part in inside}) & libraries)


def _version_checks(tree: ast.AST, *, may_read: bool = False) -> list[int]:
    """Return the lines that read a library's version or ask whether a library has a name."""
    lines, libraries = set[int](), _of_libraries(tree)
    for node in ast.walk(tree):
        names = {_name_of(part) for part in ast.walk(node)}
        if isinstance(node, ast.Attribute):
            found = not may_read and node.attr in {"__version__", "version_info"} and bool(names & {*libraries, "sys"})
        elif isinstance(node, ast.Compare):
            found = ("__version__" in names and bool(names & libraries)) or bool({"dir", "vars"} & names)
        elif isinstance(node, ast.Call):
            is_read = _name_of(node.func) in {"version", "python_version", "distribution"}
            found = _asks(node, libraries) or (is_read and not may_read)
        else:
            found = isinstance(node, ast.Try) and _tries(node, libraries)
        if found:
            lines.add(node.lineno)
    return sorted(lines)


@pytest.mark.long
def test_versions_of_libraries_are_told_apart_in_the_compat_modules_only() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in CODE.rglob("*.py")
        if not any(path.is_relative_to(place) for place in COMPAT)
        for line in _version_checks(ast.parse(path.read_text()), may_read=str(path.relative_to(ROOT)) in READERS)
    }
    assert found == set()


@pytest.mark.parametrize("code", [
    "hasattr(torch.backends, 'x')", "if torch.__version__ > '2': pass", "torch.__version__.startswith('2.6')",
    "from torch import backends\nhasattr(backends, 'x')", "import transformers as t\ngetattr(t, 'x', None)",
    "from importlib import metadata\nmetadata.version('torch')", "'x' in dir(torch)",
    "find_spec('transformers.masking')",
    "try:\n    from transformers import AttentionInterface\nexcept ImportError:\n    pass",
    "try:\n    torch.compiler.set_stance('x')\nexcept AttributeError:\n    pass",
    "import inspect\ninspect.signature(torch.compile)", "import sys\nsys.version_info < (3, 11)",
])  # fmt: skip
def test_a_version_check_is_found_however_it_is_written(code: str) -> None:
    assert _version_checks(ast.parse(code))


@pytest.mark.long
def test_what_the_trainer_imports_is_of_the_oldest_python() -> None:
    names = [name for _, name, _ in pkgutil.walk_packages(plumbline.train.__path__, "plumbline.train.")]
    names += ["plumbline.upgrade.inputs", "plumbline.night.prepare"]  # of the upgrade gate, which builds the data there
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    code += "print('\\n'.join(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'plumbline'))"
    files = [Path(line) for line in run(sys.executable, "-c", code).stdout.split()]
    assert len(files) > 80
    newer = []
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=SUPPORTED["python"][0])
        for node in tree.body:  # what a function imports is loaded where it is called
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            newer += [(file.name, name) for name in names if name in NEWER.get(module or "", ()) or name == "tomllib"]
    assert newer == []


def test_older_switches_are_set_read_and_recorded_under_the_newer_names(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = apply_settings("fp32", strict=False, part="speed")
    monkeypatch.setattr(compat_torch, "_HAS_LEAVES", False)
    unstated = [key for key in newer if "mkldnn" in key and key.endswith("fp32_precision")]
    monkeypatch.setattr("plumbline.train.numerics.UNSTATED", tuple(unstated))
    older = apply_settings("fp32", strict=False, part="speed")
    stated = {key for key in newer if key.endswith("fp32_precision")} & older.keys()
    assert len(stated) == 4
    assert {key: newer[key] for key in stated} == {key: older[key] for key in stated}
    assert older["unstated"] == " ".join(unstated)
    assert "unstated" not in newer
    apply_settings("fp32", strict=True, part="probe")


def _old_model(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """Return a model that chooses its attention as transformers 4 does: by a class, when it is built."""
    source = types.ModuleType("modeling_old")

    class Attention(nn.Module):
        pass

    class Fused(Attention):
        pass

    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = types.SimpleNamespace(_attn_implementation="sdpa", model_type="old")
            self.attn_implementation = "sdpa"
            self.inner = Fused()

    Old.__module__ = "modeling_old"
    source.OLD_SELF_ATTENTION_CLASSES = {"eager": Attention, "sdpa": Fused}
    monkeypatch.setitem(sys.modules, "modeling_old", source)
    return Old()


def test_a_tied_parameter_has_the_name_of_the_base_whatever_its_version_registers_first() -> None:
    # transformers 5 registers the head of XLM-RoBERTa first, and 4.57 its base: weights of one are read by the other.
    settings = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    about = {**MODEL, **settings, "num_labels": None, "family": "xlm-roberta", "settings": settings}
    spec = ModelSpec.model_validate({**about, "weights_key": "weights/x", "weights_sha256": "0" * 64})
    evidence = describe_model(build_family(spec, "masked-lm", "eager", 0.0))
    tied = {parameter.name: parameter.tied_to for parameter in evidence.parameters if parameter.tied_to}
    assert tied["lm_head.decoder.weight"] == "roberta.embeddings.word_embeddings.weight"
    assert next(iter(evidence.parameters)).name.startswith("roberta.")


def test_an_older_model_gets_the_class_of_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _old_model(monkeypatch)
    assert attention_of(model) == "sdpa"
    model.config._attn_implementation = "eager"  # without effect in these versions: the record must not say it
    assert attention_of(model) == "sdpa"
    use_attention_formula(model, "formula", print)
    assert (type(model.inner).__name__, attention_of(model)) == ("Attention", "eager")
    assert model.attn_implementation == "eager"


def test_a_version_without_stances_of_the_compiler_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "set_stance")
    with compat_torch.without_compiler():
        assert torch.ones(1).item() == 1.0


def test_a_formula_decides_the_selfcheck_and_a_version_only_whether_a_difference_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply_settings("fp32", strict=True, part="probe")
    found = trained("masked-lm", torch.device("cpu"), "eager", steps=1)
    (output, digest), *outputs = found.windows[0].outputs
    additional = found.replace(
        windows=(found.windows[0].replace(outputs=((output, digest), *outputs, ("idle", digest))),)
    )
    sketches = dict(found.windows[0].sketches)
    first, *others = sketches[f"forward {output}"]
    moved = tuple((sketches | {f"forward {output}": (first * (1 + 1e-9), *others)}).items())
    other = found.windows[0].replace(outputs=((output, "f" * 16), *outputs), sketches=moved)
    wrong = found.replace(windows=(other,))
    verdicts = {}
    for version in ("2.13.0+cpu", "2.99.0"):
        monkeypatch.setattr(torch, "__version__", version)
        verdicts[version] = [judge_windows({"masked-lm": one}, steps=1)[0] for one in (found, additional, wrong)]
    assert verdicts == {"2.13.0+cpu": ["pass", "pass", "drift"], "2.99.0": ["pass", "pass", "unknown"]}
    assert output in judge_windows({"masked-lm": wrong}, steps=1)[1]["masked-lm"]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the trainer's needs: no Plumbline, Prefect or SDK of a store."""
    folder = tmp_path_factory.mktemp("team") / "env"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    for place in (path for path in map(Path, sys.path) if path.name == "site-packages"):
        for path in place.iterdir():
            if not NOT_NEEDED.match(path.name) and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
    (folder.parent / "uv.lock").write_text("locked")
    return folder


def train_in(python: Path, workshop: Workshop, folder: Path) -> list[Any]:
    """Return the command that trains `folder`/spec.json in an environment."""
    places = ["--out", folder / "out", "--data", workshop.url, "--cache", folder / "cache"]
    return [sys.executable, "-m", "plumbline", "train", folder / "spec.json", *places, "--python", python]


@pytest.mark.long
def test_a_team_s_environment_trains_without_plumbline_and_names_its_own_lock(
    workshop: Workshop, team: Path, tmp_path: Path
) -> None:
    spec = workshop.spec(probe={"steps": 2, "evaluation_rows": 8, "portable_steps": 1})
    write_spec(spec, tmp_path / "spec.json")
    environment = os.environ | {"PLUMBLINE_LOCK": str(ROOT / "locks" / "all.txt"), "PYTHONPATH": str(ROOT)}
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("raise ImportError('of the working directory')")
    done = run(*train_in(team, workshop, tmp_path), "--json", env=environment, cwd=tmp_path)
    assert json.loads(done.stdout)["status"] == "completed"
    fingerprint = read_record(tmp_path / "out").fingerprint
    assert fingerprint.lock_sha256 == digest_file(team.parent / "uv.lock")
    assert fingerprint.packages["torch"] == metadata.version("torch")
    assert not {"prefect", "boto3", "plumbline-training"} & fingerprint.packages.keys()
    assert "PYTHONPATH" not in fingerprint.environment


@pytest.mark.long
def test_the_upgrade_gate_builds_the_environments_of_the_team_s_own(team: Path, tmp_path: Path) -> None:
    base = team_base(str(team))
    assert base.lock == team.parent / "uv.lock"
    store = PackageStore(tmp_path / "store", Installer("pip", (), base.python), base=base)
    environments = Environments(tmp_path / "environments", store, base=base)
    assert "torch" in environments.current
    assert not {"prefect", "boto3"} & environments.current.keys()
    small = Environments(tmp_path / "small", store, {"numpy": environments.current["numpy"]}, base).build(())
    code = "import numpy, plumbline, sys, importlib.util as u; print(sys.prefix, u.find_spec('torch'))"
    done = run(small.python, "-c", code, env=os.environ | {"PYTHONPATH": str(team)} | dict(small.variables))
    assert done.stdout.split() == [str(small.folder), "None"]


def _foreign_program(path: Path) -> None:
    """Write the head of a program for ARM."""
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\xb7\x00\x01\x00\x00\x00" + bytes(40))
    path.chmod(0o755)


def _unfit(fault: str, team: Path, folder: Path) -> Path:
    """Return an environment that cannot train, or what stands in its place."""
    if fault in {"no interpreter", "not for this machine"}:
        folder.mkdir()
        if fault == "no interpreter":
            return folder
        _foreign_program(folder / "python")
        return folder / "python"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    for path in (next((team / "lib").glob("python*")) / "site-packages").iterdir():
        if not path.name.startswith("torch" if fault != "old transformers" else "transformers-"):
            (site / path.name).symlink_to(path)
    name, number = ("transformers", "4.30.2") if fault == "old transformers" else ("torch", torch.__version__)
    if fault != "no torch":
        about = site / f"{name}-{number}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        machine = "s390x" if fault == "other architecture" else platform.machine()
        (about / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_{machine}\n")
    if fault not in {"no torch", "old transformers"}:
        (site / "torch").mkdir()
        load = "import torch._C"
        if fault == "torch cut off":
            with next(Path(torch.__file__).parent.glob("lib/libtorch_cpu*")).open("rb") as whole:
                (site / "torch" / "libtorch_cpu.so").write_bytes(whole.read(100_000))
            load = "import ctypes, pathlib; ctypes.CDLL(str(pathlib.Path(__file__).with_name('libtorch_cpu.so')))"
        (site / "torch" / "__init__.py").write_text(load + "\n")
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no torch", "torch: is not installed (hint: the trainer needs torch 2.4 to 2.15)"),
        ("old transformers", "transformers 4.30.2 is older than 4.41 (hint: the trainer needs transformers 4.41 to"),
        ("broken torch", "torch: cannot be loaded: No module named 'torch._C'"),
        ("torch cut off", "torch: cannot be loaded: its import ends by SIGBUS (hint: install it again, for this"),
        ("other architecture", f"torch {torch.__version__} is built for s390x, this machine is {platform.machine()}"),
        ("no interpreter", "python: contains no bin/python (hint: name a Python interpreter, or the folder of a"),
        ("not for this machine", "python: cannot be started: "),
    ],
)
def test_an_environment_that_cannot_train_is_refused_in_one_line(
    workshop: Workshop, team: Path, tmp_path: Path, fault: str, words: str
) -> None:
    python = _unfit(fault, team, tmp_path / "env")
    spec = workshop.spec(probe={"steps": 2, "evaluation_rows": 8})
    write_spec(spec, tmp_path / "spec.json")
    assert words in error_line(*train_in(python, workshop, tmp_path))
    # The upgrade gate asks the doctor, which asks the same environment in the same way.
    with pytest.raises(ConfigurationError) as refused:
        team_base(str(python))
    assert words.partition(" (hint")[0] in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    if fault == "torch cut off":
        # Nothing was checked of the gate's own environment; its first training does not begin.
        site = next((python / "lib").glob("python*")) / "site-packages"
        own = Base(python / "bin" / "python", platform.python_version(), "abi", (str(site),))
        suite = small_suite(tmp_path, platforms=("onprem",))
        trials = local_trials(suite, "tiny", UpgradeSettings(tmp_path / "work", base=own))
        with pytest.raises(ConfigurationError, match="its import ends by SIGBUS"):
            trials.run(Trial(name="reference", part="reference"))
