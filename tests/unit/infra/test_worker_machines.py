"""Machines of workers: what cloud-init installs and checks, and the unit that runs the worker."""

from __future__ import annotations

import configparser
import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from plumbline.night.doctor.place import cuda_of_torch

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"


@pytest.mark.parametrize("path", ["worker/Dockerfile", "controller/Dockerfile", "README.md"])
def test_a_machine_builds_the_package_by_the_locked_setuptools(path):
    """An isolated build downloads setuptools by its version, and runs it, without a hash."""
    text = (INFRA / path).read_text()
    builds = [line for line in text.splitlines() if "--no-deps" in line and "--require-hashes" not in line]
    assert builds
    assert all("--no-build-isolation" in line for line in builds), builds


@pytest.mark.parametrize("name", ["worker/Dockerfile", "controller/Dockerfile", "README.md"])
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


def first_files(**values):
    """Return the files that a machine gets at its first start, as the engine fills them in."""
    content = yaml.safe_load((INFRA / "cloud-init" / "worker.yaml").read_text())
    return {entry["path"]: filled(entry["content"], **values) for entry in content["write_files"]}


def filled(text, **values):
    text = re.sub(r"(?<!\$)\$\{(\w+)}", lambda place: values.get(place[1], place[1]), text)
    return text.replace("$${", "${")


def test_what_the_cloud_files_name_on_the_machine_is_put_there():
    written = {*first_files(), "/etc/plumbline/worker.env"}
    for path in [INFRA / "cloud-init" / "worker.yaml", *INFRA.glob("systemd/*"), *INFRA.glob("*/README.md")]:
        assert set(re.findall(r"/etc/plumbline/[\w.-]*\w", path.read_text())) <= written, path


def script(tmp_path, name, text):
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    (tmp_path / "bin" / name).chmod(0o755)


IMAGE = "ghcr.io/acme/plumbline-worker@sha256:1"


@pytest.mark.parametrize(("registry", "sees_gpu"), [("", True), ("reader:to:ken", True), ("", False)])
def test_a_machine_fetches_its_secret_and_starts_no_worker_without_the_gpu(tmp_path, registry, sees_gpu):
    script(tmp_path, "machine", f"printf 'PREFECT_API_AUTH_STRING=user:password\\nREGISTRY_LOGIN={registry}\\n'")
    answers = f"[ $1 != run ] || exit {0 if sees_gpu else 1}\n[ $1 != login ] || cat"
    script(tmp_path, "docker", f'echo "$*" >> {tmp_path}/asked\n{answers}')
    text = first_files()["/etc/plumbline/prepare"].replace("/etc/plumbline", str(tmp_path / "bin"))
    done = subprocess.run(
        ["/bin/sh", "-s", IMAGE, str(tmp_path / "run")], input=text, capture_output=True, text=True, timeout=60,
        env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if sees_gpu else 1), done.stderr
    # The password is in a file of root's, and on no command line.
    env = tmp_path / "run" / "worker.env"
    assert (env.read_text(), env.stat().st_mode & 0o77) == ("PREFECT_API_AUTH_STRING=user:password\n", 0)
    asked = (tmp_path / "asked").read_text().splitlines()
    login = ["login --username reader --password-stdin ghcr.io"] if registry else []
    assert asked[:-1] == [*login, f"pull --quiet {IMAGE}"]
    assert asked[-1].startswith(f"run --rm --gpus all --entrypoint python {IMAGE} -c import sys, torch;")
    assert done.stdout == ("to:ken" if registry else "")


@pytest.mark.parametrize("ending", ["idle", "too old", "taken back"])
def test_a_machine_ends_itself_when_idle_too_old_or_taken_back(tmp_path, ending):
    """A process named as Prefect's runs is the training, and commands record what the machine asks for."""
    said = tmp_path / "said"
    notice = f"[ -e {tmp_path}/taken ]"
    script(
        tmp_path, "machine", f"case $1 in notice) {notice};; *) echo $1 >> {said}; [ ! -e {tmp_path}/refused ];; esac"
    )
    script(tmp_path, "systemctl", f"echo $1 >> {said}")
    script(tmp_path, "sleep", "exec /bin/sleep 0.2")
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); print('up', flush=True); time.sleep(300)"  # noqa: E501
    training = subprocess.Popen(
        [sys.executable, "-c", code, "-m prefect.engine"], stdout=subprocess.PIPE, start_new_session=True
    )
    training.stdout.readline()
    for name in ("pgrep", "pkill"):  # of this training alone, and of no other user than this test's
        script(
            tmp_path,
            name,
            f'exec /usr/bin/{name} -s {training.pid} $(echo "$*" | sed "s/-u 10001.*//") -f prefect.engine',
        )
    limits = {"idle": ("2", "600"), "too old": ("600", "2"), "taken back": ("600", "600")}[ending]
    text = first_files()["/etc/plumbline/watch"].replace("/etc/plumbline", str(tmp_path / "bin"))
    (tmp_path / "watch").write_text(text)
    watch = subprocess.Popen(
        ["/bin/sh", str(tmp_path / "watch"), *limits], env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    )
    try:
        if ending == "idle":
            time.sleep(4)
            assert watch.poll() is None
            assert not said.exists()
            training.terminate()
        elif ending == "taken back":
            (tmp_path / "taken").touch()
        # A training that still runs gets SIGTERM, and ends as interrupted.
        assert training.wait(60) == 9
        assert watch.wait(60) == 0
    finally:
        watch.kill()
        training.kill()
        training.stdout.close()
    assert said.read_text().split() == (["stop"] if ending == "taken back" else ["stop", "off"])


class Azure(BaseHTTPRequestHandler):
    """Metadata server, vault and resource manager of one machine."""

    asked: ClassVar[list] = []
    events: ClassVar[list] = []

    def do_GET(self):
        answers = {
            "/metadata/identity/oauth2/token": {"access_token": "T"},
            "/metadata/instance/compute": {"name": "gpu_0", "resourceId": "/subscriptions/s/gpu/virtualMachines/0"},
            "/metadata/scheduledevents": {"Events": self.events},
            "/vault/secret": {"value": "PREFECT_API_AUTH_STRING=user:password"},
        }
        path = self.path.partition("?")[0]
        is_own = (
            self.headers["Metadata"] == "true"
            if path.startswith("/metadata")
            else self.headers["Authorization"] == "Bearer T"
        )
        self.send_response(200 if is_own else 401)
        self.end_headers()
        self.wfile.write(json.dumps(answers[path]).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_machine_of_azure_reads_its_secret_sees_a_notice_and_deletes_itself(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Azure)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    program = tmp_path / "machine"
    program.write_text(filled((INFRA / "azure/machine.py").read_text(), client_id="id", secret=f"{url}/vault/secret"))

    def machine(word):
        env = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": url, "AZURE_RESOURCES": url}
        return subprocess.run(
            [sys.executable, str(program), word], env=env, capture_output=True, text=True, timeout=60, check=False
        )

    try:
        assert machine("secret").stdout == "PREFECT_API_AUTH_STRING=user:password\n"
        codes = []
        for events in (
            [],
            [{"EventType": "Preempt", "Resources": ["gpu_1"]}],
            [{"EventType": "Preempt", "Resources": ["gpu_0"]}],
        ):
            Azure.events[:] = events
            codes.append(machine("notice").returncode)
        assert codes == [1, 1, 0]
        assert machine("off").returncode == 0
    finally:
        server.shutdown()
        server.server_close()
    assert Azure.asked == [("/subscriptions/s/gpu/delete?api-version=2024-07-01", "Bearer T", {"instanceIds": ["0"]})]


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
