"""Each recipe of CONTRIBUTING.md, done in a copy of the tree: its module, its lines, and what a user gets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.flows.webhook_server import receiver
from tests.train.checkpoints import FAMILIES, make_checkpoint, write_reviews

ROOT = Path(__file__).parents[2]
MODULES = Path(__file__).parent / "modules"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


class Copy:
    """A copy of the tree; `files` are those that the recipe touched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: set[str] = set()
        for folder in ("plumbline", "flows", "tasks", "tests", "infra/local"):
            ignored = shutil.ignore_patterns("__pycache__", "kept", "node_modules")
            shutil.copytree(ROOT / folder, root / folder, symlinks=True, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", root)

    def module(self, name: str, place: str) -> None:
        """Add the module of the recipe."""
        assert not (self.root / place).exists()
        shutil.copy(MODULES / name, self.root / place)
        self.files.add(place)

    def line(self, place: str, after: str, *lines: str) -> None:
        """Add lines after the line that is or begins with `after`."""
        path = self.root / place
        old = path.read_text(encoding="utf-8").splitlines()
        at = next(number for number, known in enumerate(old) if known.startswith(after))
        path.write_text("\n".join([*old[: at + 1], *lines, *old[at + 1 :]]) + "\n", encoding="utf-8")
        self.files.add(place)

    def python(self, *arguments: str, code: int = 0) -> str:
        """Run Python in the copy; return its output."""
        environment = {**os.environ, "PYTHONPATH": str(self.root)}
        environment.pop("PREFECT_API_URL", None)
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"[-4000:]
        return done.stdout

    def script(self, text: str) -> str:
        return self.python("-c", "import plumbline, pathlib\n" + textwrap.dedent(text))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    made = Copy(tmp_path / "tree")
    assert made.script("print(pathlib.Path(plumbline.__file__).parent)").strip() == str(made.root / "plumbline")
    return made


def recipe(title: str) -> str:
    """Return a recipe's paragraph."""
    return next(part for part in GUIDE.split("\n\n") if part.startswith(f"**{title}**"))


def named(title: str) -> set[str]:
    """Return the product's files that a recipe names, without those of a new module."""
    names = re.findall(r"`((?:plumbline|tasks|flows)/[\w/.]+\.\w+)`", recipe(title))
    return {name for name in names if "NAME" not in name}


def test_every_file_that_the_guide_names_exists() -> None:
    names = re.findall(r"`((?:plumbline|tasks|flows|tests|bench)/[\w/.]+)`", GUIDE)
    assert len(names) > 20
    assert [name for name in names if "NAME" not in name and not (ROOT / name).exists()] == []


def test_a_gate(copy: Copy) -> None:
    copy.module("final_loss.py", "plumbline/judge/gates/final_loss.py")
    copy.line(
        "plumbline/judge/gates/__init__.py",
        "from plumbline.judge.gates.accuracy",
        "from plumbline.judge.gates.final_loss import final_loss_gate",
    )
    copy.line("plumbline/judge/gates/__init__.py", "    accuracy_gate,", "    final_loss_gate,")
    copy.line(
        "plumbline/schema/suite.py", "    accuracy_standard_errors", "    loss_rise: float = Field(default=0.05, gt=0)"
    )
    sentences = ("[final-loss]", 'rise = "rise of the last loss"', 'values = "{loss:.2f} instead of {reference:.2f}"')
    copy.line("plumbline/report/sentences.toml", "# Sentences", *sentences)
    assert copy.files - {"plumbline/judge/gates/final_loss.py"} == named("Add a gate")
    out = copy.script("""
        from plumbline.judge import compare
        from plumbline.report.sentences import sentence_of
        from plumbline.schema.suite import Gates
        from tests.unit.judge.made_records import learned
        for limit in (0.1, 0.3):
            reference = learned(0.9, (0.7, 0.5), "a")
            judged = compare(reference, learned(0.9, (0.7, 0.7), "b"), Gates(loss_rise=limit))
            found = next(one for one in judged.findings if one.check == "learn.final_loss")
            print(found.outcome, sentence_of(found.detail))
    """)
    assert out.splitlines() == ["drift 0.70 instead of 0.50", "pass 0.70 instead of 0.50"]


def test_a_rung_is_asked_of_every_part(copy: Copy) -> None:
    copy.module("loss_scale.py", "plumbline/judge/rungs/loss_scale.py")
    imported = "from plumbline.judge.rungs.loss_scale import loss_scale"
    copy.line("plumbline/judge/walk.py", "from plumbline.judge.rungs.loss import", imported)
    question = '("gradient", (loss_scale(pair, step, part) for step in steps("loss_scales"))),'
    copy.line("plumbline/judge/walk.py", '        ("loss", (', f"        {question}")
    sentences = ('scale = "the loss is scaled by {scale}, not {reference}"', 'scale-at = "scale at step {step}"')
    copy.line("plumbline/report/sentences.toml", "[gradient]", *sentences)
    assert copy.files - {"plumbline/judge/rungs/loss_scale.py"} == named("Add a rung")
    out = copy.script("""
        from plumbline.judge.pair import Pair
        from plumbline.judge.walk import logged, walk
        from plumbline.report.sentences import sentence_of
        from tests.unit.judge.made_records import whole
        def scaled(part, factor):
            return whole(lambda content: content["evidence"][part].update(loss_scales=[2.0, factor, 2.0]))
        of_curve = logged(Pair(scaled("learn", 2.0), scaled("learn", 4.0)), "learn")
        of_probe = walk(Pair(scaled("probe", 2.0), scaled("probe", 4.0))).mismatches
        for found in (of_curve, *of_probe):
            print(found.at.step, found.at.at, sentence_of(found.suspicions[0].why))
    """)
    assert out.splitlines() == ["1 loss scale the loss is scaled by 4.0, not 2.0"] * 2


@pytest.mark.long
def test_a_store(copy: Copy, tmp_path: Path) -> None:
    copy.module("sqlite.py", "plumbline/data/stores/sqlite.py")
    entry = '"sqlite": StoreKind("sqlite://FILE", "plumbline.data.stores.sqlite", _folder, "the user", _FOLDER_RIGHTS),'
    copy.line("plumbline/schema/store_url.py", "KINDS: Mapping", f"    {entry}")
    assert copy.files - {"plumbline/data/stores/sqlite.py"} == named("Add a store")
    copy.line(
        "tests/contract/test_stores.py",
        "_OPENERS = {",
        '    "sqlite": lambda fixture, _: iter([open_store(f"sqlite://{fixture(\'tmp_path\')}/store.db")]),',
    )
    inner = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}")
    out = copy.python(*inner, "tests/contract/test_stores.py", "-k", "sqlite")
    assert re.search(r"^\d\d passed, \d+ deselected", out, re.MULTILINE)
    # As a user: a conformance test of the store at its URL.
    out = copy.python("-m", "plumbline", "doctor", "--store", f"sqlite://{tmp_path}/mine.db", "--json")
    assert all(result["well"] for result in json.loads(out)["checks"])


def test_an_alert_event(copy: Copy) -> None:
    raised_by = (
        'lambda result: {"": fact("alert.slow", seconds=sum(result.timings.values()))} if result.timings else {}'
    )
    copy.line("plumbline/schema/alert_event.py", "EVENTS: Mapping", f'    "slow": EventKind("warning", {raised_by}),')
    copy.line("plumbline/report/sentences.toml", "[alert]", 'slow = "the training took {seconds:.0f} s"')
    assert copy.files == named("Add an alert event")
    with receiver() as webhook:
        out = copy.script(f"""
            from datetime import UTC, datetime
            from plumbline.night.alerts import AlertState, update
            from plumbline.schema.suite import Alert
            from plumbline.schema.verdict import PlatformResult, RoundVerdict
            from plumbline.tasks.prefect_client.notifications import AppriseUrl, send
            alert, known = Alert(on=("slow",), block="apprise-url/hook"), AppriseUrl(url={webhook.url!r})
            lab = PlatformResult(verdict="pass", timings={{"train": 90.0}}, workloads={{"w": "pass"}})
            verdict = RoundVerdict(round="n-1", suite="s", verdict="pass", platforms={{"lab": lab}})
            (item,) = update(AlertState(), verdict, [alert], datetime.now(UTC)).pending
            print(send(item.block, item.subject, item.body, {{item.block: known}}, event=item.event) or "sent")
        """)
        assert out.splitlines() == ["sent"]
        (message,) = webhook.got
    assert message["title"] == "[plumbline] s: slow on lab: the training took 90 s"
    assert message["type"] == "warning"


def test_a_cause(copy: Copy) -> None:
    copy.line("plumbline/schema/verdict.py", "CauseCode = Literal[", '    "power",')
    causes, sentences = "plumbline/report/causes.toml", "plumbline/report/sentences.toml"
    entry = (
        "[power]",
        'group = "Speed"',
        'meaning = "Too little power."',
        'evidence = "the cap."',
        'do = "raise it."',
        "",
    )
    copy.line(causes, "# Meaning", "", *entry)
    copy.line(sentences, "[because]", 'power = "the machine has too little power"')
    copy.line(sentences, "[hint]", 'power = "Raise the power cap."')
    assert copy.files == named("Add a cause")
    out = copy.script("""
        from plumbline.judge.suspects import suspects_for
        from plumbline.report.sentences import about
        from plumbline.schema.verdict import Cause
        cause = Cause(code="power", sure="likely", why="", suspects=suspects_for("power", ["driver: 580 → 590"]))
        print(cause.suspects, about("because", cause.code), about("hint", cause.code), sep="; ")
    """)
    assert out.splitlines() == ["('driver: 580 → 590',); the machine has too little power; Raise the power cap."]
    assert "Too little power." in copy.python("-m", "plumbline", "explain", "power")


@pytest.mark.long
def test_a_task_trains_on_a_family_that_no_code_names(
    copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.module("replaced_tokens.py", "plumbline/train/tasks/replaced_tokens.py")
    copy.line("plumbline/schema/task.py", "TASKS: Mapping", '    "replaced-tokens": "token",')
    assert copy.files - {"plumbline/train/tasks/replaced_tokens.py"} == named("Add a task")
    assert named("Add a model family") == set()
    monkeypatch.setitem(FAMILIES, "ernie", ("Ernie", FAMILIES["bert"][1], FAMILIES["bert"][2]))
    model = make_checkpoint("ernie", tmp_path / "model", use_task_id=False)
    suite = tmp_path / "suite.toml"
    suite.write_text(
        f"""
        name = "recipe"
        store = "file://{tmp_path}/central"
        reference = "here"
        [datasets.rows]
        path = "{write_reviews(tmp_path / "rows.csv")}"
        [workloads.w]
        task = "replaced-tokens"
        model = "{model}"
        data = "rows"
        seed = 1
        batch_size = 8
        sequence_length = 24
        probe = {{ steps = 2, evaluation_rows = 8 }}
        [platforms.here]
        work_pool = "p"
        data = "file://{tmp_path}/data"
        outbox = "file://{tmp_path}/outbox"
    """,
        encoding="utf-8",
    )
    spec = tmp_path / "spec.json"
    copy.python("-m", "plumbline", "spec", str(suite), "w", "--out", str(spec), "--to", f"file://{tmp_path}/data")
    one, two = tmp_path / "one", tmp_path / "two"
    arguments = ("--out", str(one), "--data", f"file://{tmp_path}/data", "--cache", str(tmp_path / "cache"))
    copy.python("-m", "plumbline", "train", str(spec), *arguments)
    shutil.copytree(one, two)
    verdict = json.loads(copy.python("-m", "plumbline", "compare", str(one), str(two), "--json"))
    assert verdict["verdict"] == "pass"
    record = json.loads((one / "record.json").read_text(encoding="utf-8"))
    assert [loss > 0 for loss in record["evidence"]["probe"]["losses"]] == [True, True]
    errors = [error for proof in record["evidence"]["probe"]["proofs"] for error in proof["errors"]]
    assert any(error["stage"] == "loss" for error in errors)
    assert 0 < record["evidence"]["probe"]["evaluation"]["accuracy"] <= 1
