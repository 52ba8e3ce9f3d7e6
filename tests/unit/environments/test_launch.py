"""Start of the trainer's process."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest

from plumbline.environments import launch, output
from plumbline.environments.control_groups import memory_kills, memory_limit
from plumbline.environments.launch import run_training, trainer_environment
from plumbline.schema.errors import ConfigurationError, ExitCode
from tests.unit.environments.test_control_groups import V2, tree

INTERPRETER = """#!/bin/sh
printf '%s ' "$@" > "$0.arguments"
printf '%s' "$PLUMBLINE_NONCE" > "$0.nonce"
"""


@pytest.mark.parametrize("nonce", ["0123456789abcdef", ""])
def test_a_nonce_is_in_no_argument_which_other_users_of_the_machine_can_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonce: str
) -> None:
    monkeypatch.setenv("PLUMBLINE_NONCE", "of-a-different-order")
    python = tmp_path / "python"
    python.write_text(INTERPRETER)
    python.chmod(0o755)
    run_training(
        tmp_path / "spec.json", tmp_path / "out", data=None, cache=tmp_path, platform="here", record_id="r",
        nonce=nonce, python=python,
    )  # fmt: skip
    arguments = (tmp_path / "python.arguments").read_text()
    assert "--platform here" in arguments
    assert "nonce" not in arguments.replace(str(tmp_path), "")
    assert not nonce or nonce not in arguments
    assert (tmp_path / "python.nonce").read_text() == nonce


KILLED = """#!/bin/sh
echo '{"event": "progress", "part": "probe", "step": 3, "steps": 20}' >&2
[ -z "$KILLS" ] || echo "oom_kill 1" > "$KILLS"
kill -9 $$
"""


@pytest.mark.parametrize("is_for_memory", [True, False])
def test_a_killed_training_ends_with_one_line_and_invalid_only_if_the_kernel_had_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_for_memory: bool
) -> None:
    group = "v2/pod/memory.events"
    process = tree(tmp_path, "0::/pod\n", V2, {group: "oom_kill 0\n", "v2/pod/memory.max": "2147483648\n"})
    monkeypatch.setattr(launch, "memory_kills", partial(memory_kills, process))
    monkeypatch.setattr(output, "memory_limit", partial(memory_limit, process))
    python = tmp_path / "python"
    python.write_text(KILLED)
    python.chmod(0o755)
    code = run_training(
        tmp_path / "spec.json", tmp_path / "out", data=None, cache=tmp_path, platform="here", record_id="r",
        python=python, environment={"KILLS": str(tmp_path / group) if is_for_memory else ""},
    )  # fmt: skip
    hint = "set a smaller probe.micro_batch, or raise the memory limit of the pod, container or job"
    if is_for_memory:
        reason = "killed by the kernel, which had no memory left for it; the limit is 2.0 GiB"
    else:
        reason, hint = "killed by SIGKILL, without a reason that can be read here", f"if memory ran out: {hint}"
    assert capsys.readouterr().err == f"trainer: probe step 3: {reason} (hint: {hint})\n"
    assert code == (ExitCode.INVALID if is_for_memory else ExitCode.INCONCLUSIVE)


@pytest.mark.parametrize("make", ["open to all", "a link", "a file"])
def test_compiled_code_comes_from_a_folder_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str
) -> None:
    """Any user of the machine can make torch's own default before, with code that the training would run."""
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(trainer_environment()["TORCHINDUCTOR_CACHE_DIR"])
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    assert trainer_environment()["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    folder.rmdir()
    if make == "a file":
        folder.write_text("")
    elif make == "a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "theirs")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="is not a folder of this user alone"):
        trainer_environment()
    assert trainer_environment({"TORCHINDUCTOR_CACHE_DIR": "/own"})["TORCHINDUCTOR_CACHE_DIR"] == "/own"
