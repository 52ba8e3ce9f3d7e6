"""Machines of workers: what cloud-init installs and checks, and the unit that runs the worker."""

from __future__ import annotations

import configparser
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plumbline.night.doctor.place import cuda_of_torch

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"


@pytest.mark.parametrize("path", ["worker/Dockerfile", "controller/Dockerfile", "cloud-init/worker.yaml", "README.md"])
def test_a_machine_builds_the_package_by_the_locked_setuptools(path):
    """An isolated build downloads setuptools by its version, and runs it, without a hash."""
    text = (INFRA / path).read_text()
    builds = [line for line in text.splitlines() if "--no-deps" in line and "--require-hashes" not in line]
    assert builds
    assert all("--no-build-isolation" in line for line in builds), builds


@pytest.mark.parametrize("name", ["worker/Dockerfile", "controller/Dockerfile", "cloud-init/worker.yaml", "README.md"])
def test_machines_of_a_cloud_install_by_hash_alone(name):
    text = (INFRA / name).read_text()
    installs = re.findall(r"^.*-r (?:\S*/)?locks/.*$", text, re.MULTILINE)
    assert installs
    assert all("--require-hashes" in line and line.count("-r ") == 1 for line in installs), installs
    assert not re.search(r"locks/(all|trainer)\.txt", text)


def test_the_lock_of_a_record_is_the_one_that_was_installed():
    for name in ("worker/Dockerfile", "systemd/plumbline-worker.service"):
        text = (INFRA / name).read_text()
        assert re.findall(r"PLUMBLINE_LOCK=\S*/(\S+)", text) == ["trainer-cuda.txt"], name


@pytest.mark.parametrize(
    ("chosen", "is_cpu"),
    [
        ([{"metadata": {"version": "2.13.0+cpu", "requires_dist": ["filelock", "sympy"]}}], True),
        ([{"metadata": {"version": "2.13.0", "requires_dist": ["nvidia-nccl-cu13==2.29.7; sys_platform"]}}], False),
        ([{"metadata": {"version": "2.13.0", "requires_dist": ["cuda-toolkit[cudart]==13.0.3"]}}], False),
        ([], not cuda_of_torch()),  # nothing to install: what is installed counts
        (None, False),
    ],
)
def test_the_build_of_torch_that_pip_would_take_is_recognised(chosen, is_cpu):
    result = runpy.run_path(str(INFRA / "install_torch.py"))["is_cpu_build"]
    assert result({} if chosen is None else {"install": chosen}) is is_cpu


def test_where_no_cpu_build_is_to_be_had_the_environment_is_not_called_one_of_the_cpu(tmp_path):
    # An environment without pip: neither the package index nor PyTorch's own answers.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True, timeout=300)
    command = [str(tmp_path / "bin" / "python"), str(INFRA / "install_torch.py")]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "torch-build").read_text() == "index\n"
    (tmp_path / "torch-build").unlink()
    asked = subprocess.run(
        [*command, "cpu"], env={"PATH": ""}, capture_output=True, text=True, timeout=300, check=False
    )
    assert asked.returncode != 0
    assert "TORCH=cpu: " in asked.stderr
    assert "set TORCH=index for the CUDA build" in asked.stderr
    assert not (tmp_path / "torch-build").exists()


def test_cloud_init_is_what_cloud_init_reads():
    text = (INFRA / "cloud-init" / "worker.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    content = yaml.safe_load(text)
    assert set(content) == {"package_update", "packages", "users", "write_files", "runcmd"}
    files = {entry["path"]: entry for entry in content["write_files"]}
    assert files["/etc/plumbline/worker.env"]["permissions"] == "0600"
    script = files["/etc/plumbline/install"]["content"]
    assert content["runcmd"][0][0] == "/etc/plumbline/install"
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=20, check=False).returncode == 0
    for path in re.findall(r"(?:locks|infra)/[\w./-]+", script):
        assert (ROOT / path).exists(), path
    assert "secret" not in files["/etc/plumbline/worker.env"]["content"].lower()


def test_what_the_cloud_files_name_on_the_machine_is_put_there():
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    written = {entry["path"] for entry in content["write_files"]}
    for path in [INFRA / "cloud-init" / "worker.yaml", *INFRA.glob("systemd/*"), *INFRA.glob("*/README.md")]:
        assert set(re.findall(r"/etc/plumbline/[\w.-]*\w", path.read_text())) <= written, path


PYTHON = """#!/bin/sh
# Stands for an image's own python3: this one, under another version.
[ "$1" = --version ] && { echo "Python VERSION"; exit; }
exec REAL -c "import sys; sys.version_info = tuple(map(int, 'VERSION'.split('.'))); exec(sys.argv[1])" "$2"
"""


@pytest.mark.parametrize(("version", "words"), [("3.10.12", "3.11 or newer"), ("3.11.0", None), ("3.12.3", None)])
def test_the_machine_s_python_is_looked_at_before_anything_is_installed(tmp_path, version, words):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    script = next(entry["content"] for entry in content["write_files"] if entry["path"] == "/etc/plumbline/install")
    python = PYTHON.replace("VERSION", version).replace("REAL", shlex.quote(sys.executable))
    # The first thing that it would change ends it: nothing else of this machine is on its path.
    for name, text in {"python3": python, "install": "#!/bin/sh\necho reached >&2\nexit 7\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if words is None:
        assert (done.returncode, done.stderr) == (7, "reached\n")
    else:
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert words in line
        assert version in line


@pytest.mark.parametrize(
    ("driver", "words"), [("570.211.01", "this image has 570.211.01"), ("", "has none"), ("580.65.06", None)]
)
def test_the_machine_s_driver_is_looked_at_before_anything_is_installed(tmp_path, driver, words):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    script = next(entry["content"] for entry in content["write_files"] if entry["path"] == "/etc/plumbline/install")
    script = script.replace("/opt/plumbline", str(tmp_path))
    (tmp_path / "src" / ".git").mkdir(parents=True)
    (tmp_path / "src" / "locks").symlink_to(ROOT / "locks")
    (tmp_path / "bin").mkdir()
    programs = {
        "install": "",
        "git": "",
        "nvidia-smi": f"echo {driver}",
        "python3": '[ "$2" = venv ] || exit 0\nexit 7',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    # The environment is made only for a driver that trains.
    assert done.returncode == (7 if words is None else 1), done.stderr
    assert (words or "") in done.stderr


@pytest.mark.git
@pytest.mark.parametrize("asked", ["tag", "commit"])
def test_a_machine_installs_a_tag_or_a_commit_that_no_moved_tag_changes(tmp_path, asked):
    """A tag that is moved between two nights would put other code on the machines than in the images."""
    origin, source = tmp_path / "origin", tmp_path / "src"

    def git(*words):
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        command = ["git", "-C", str(origin), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.strip()

    origin.mkdir()
    git("init", "--quiet")
    (origin / "locks").mkdir()
    shutil.copy(ROOT / "locks" / "trainer-cuda.txt", origin / "locks")
    commits = []
    for _ in range(2):
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", "state")
        git("tag", "--force", "v1")
        commits.append(git("rev-parse", "HEAD"))
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    script = next(entry["content"] for entry in content["write_files"] if entry["path"] == "/etc/plumbline/install")
    (tmp_path / "bin").mkdir()
    # The driver is too old: the machine has the code by then, and nothing else is installed.
    for name, text in {"install": "", "python3": "", "nvidia-smi": "echo 1.0"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", str(origin), "v1" if asked == "tag" else commits[0]],
        input=script.replace("/opt/plumbline", str(tmp_path)),
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "has 1.0" in done.stderr
    head = subprocess.run(
        ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=300
    )
    assert head.stdout.strip() == commits[1 if asked == "tag" else 0]


VENV_PYTHON = """#!/bin/sh
# Stands for the environment's python: packages install, and torch sees the GPU or not.
[ "$1" = -c ] && [ -n "$(echo "$2" | grep torch)" ] && exit SEEN
exit 0
"""


@pytest.mark.parametrize(("code", "starts"), [(0, True), (1, False)])
def test_a_machine_whose_torch_sees_no_gpu_starts_no_worker_although_nvidia_smi_answers(tmp_path, code, starts):
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    files = {entry["path"]: entry["content"] for entry in content["write_files"]}
    script = files["/etc/plumbline/install"].replace("${password_command}", "echo user:password")
    script = script.replace("/opt/plumbline", str(tmp_path)).replace("/etc/plumbline", str(tmp_path))
    (tmp_path / "worker.env").write_text(files["/etc/plumbline/worker.env"])
    for folder in ("bin", "src/.git", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("locks", "infra"):
        (tmp_path / "src" / folder).symlink_to(ROOT / folder)
    (tmp_path / "venv/bin/python").write_text(VENV_PYTHON.replace("SEEN", str(code)))
    programs = {"install": "", "git": "", "python3": "", "nvidia-smi": "echo 580.65.06"}
    programs["systemctl"] = f"echo $1 >> {tmp_path}/said"
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    for path in [*(tmp_path / "bin").iterdir(), tmp_path / "venv/bin/python"]:
        path.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s", "REPOSITORY", "TAG"], input=script, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("torch sees no GPU" in done.stderr) is not starts
    assert ("restart" in (tmp_path / "said").read_text()) is starts
    # The password is on the machine alone, and not in what the cloud shows of it.
    assert ("PREFECT_API_AUTH_STRING=user:password\n" in (tmp_path / "worker.env").read_text()) is starts


def unit():
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(INFRA / "systemd" / "plumbline-worker.service")
    return parser


def test_the_unit_runs_one_training_at_a_time_and_stops_all_of_it():
    service = unit()["Service"]
    assert "--limit 1" in service["ExecStart"]
    assert (service["Restart"], service["KillMode"], service["User"]) == ("always", "control-group", "plumbline")
    assert service["NoNewPrivileges"] == "yes"
    assert service["EnvironmentFile"] == "/etc/plumbline/worker.env"


def test_systemd_itself_accepts_the_unit(tmp_path):
    assert unit().sections() == ["Unit", "Service", "Install"]
    text = (INFRA / "systemd" / "plumbline-worker.service").read_text()
    # systemd looks for the program, which is on the worker's machine only.
    copy = tmp_path / "plumbline-worker.service"
    copy.write_text(re.sub("/opt/plumbline/venv/bin/[a-z]+", "/bin/true", text))
    if shutil.which("systemd-analyze"):
        command = ["systemd-analyze", "verify", "--man=no", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert [line for line in done.stderr.splitlines() if copy.name in line] == []
