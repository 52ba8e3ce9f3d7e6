"""Samples of host and GPU, and the separation of own and foreign load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from plumbline.environments.control_groups import QuotaUse
from plumbline.train import batches
from plumbline.train.machine import fingerprint, sampler
from plumbline.train.machine.sampler import Sampler


def test_the_sampler_ends_its_thread() -> None:
    with Sampler(torch.device("cpu")) as running:
        assert any(thread.name == "plumbline-sampler" for thread in threading.enumerate())
    assert not any(thread.name == "plumbline-sampler" for thread in threading.enumerate())
    assert len(running.samples()["load"]) == 1


DISKS = """\
   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 10 0 {read} 5 4 0 {written} 6 0 {busy} 9 0 0 0 0 0 0
 254       1 vda1 10 0 {read} 5 4 0 {written} 6 0 {busy} 9 0 0 0 0 0 0
 253       0 dm-0 10 0 {read} 5 4 0 {written} 6 0 {busy} 9 0 0 0 0 0 0
"""


def test_the_disks_rates_count_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("loop0", "vda", "dm-0"):
        (tmp_path / "block" / name).mkdir(parents=True)
    table = tmp_path / "diskstats"
    table.write_text(DISKS.format(read=100, written=10, busy=0))
    monkeypatch.setattr(sampler, "_BLOCK_DEVICES", tmp_path / "block")
    monkeypatch.setattr(sampler, "_DISK_TABLE", table)
    clock = iter([100.0, 102.0])
    monkeypatch.setattr(sampler.time, "monotonic", lambda: next(clock))
    sampled = sampler.Host()
    table.write_text(DISKS.format(read=100 + 4000, written=10 + 400, busy=500))
    result = sampled.read()
    assert result["disk_read_bytes_per_second"] == pytest.approx(4000 * 512 / 2)
    assert result["disk_written_bytes_per_second"] == pytest.approx(400 * 512 / 2)
    assert result["disk_busy"] == pytest.approx(0.25)


def test_a_machine_without_disk_counters_says_nothing_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_DISK_TABLE", tmp_path / "none")
    assert sampler.Host().read()["disk_busy"] is None


RANK = r"""
import os, subprocess, sys, time
from pathlib import Path
from plumbline.train.machine.sampler import own_jiffies, own_processes

BURN = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); time.sleep(60)"
folder, rank = Path(sys.argv[1]), os.environ["RANK"]

def wait(name):
    until = time.monotonic() + 120
    while not (folder / name).exists():
        assert time.monotonic() < until, name
        time.sleep(0.01)

(folder / f"pid{rank}").write_text(str(os.getpid()))
if rank == "1":
    wait("measuring")
    loader = subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, start_new_session=True)
    (folder / "loader").write_text(str(loader.pid))
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass
    loader.stdout.readline()
    (folder / "burnt").touch()
    wait("measured")
    loader.kill()
else:
    wait("pid1")
    before = own_jiffies()
    (folder / "measuring").touch()
    wait("burnt")
    found = [own_jiffies() - before, *own_processes()]
    (folder / "found").write_text(" ".join(map(str, found)))
    (folder / "measured").touch()
"""


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["torchrun", "a shell"])
def test_the_other_ranks_of_a_training_are_no_foreign_load(tmp_path: Path, launcher: str) -> None:
    """`torchrun` gives each rank a session of its own; what the same shell has started besides is not the training."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command, environment = (
        [str(script), str(tmp_path)],
        {**os.environ, "PYTHONPATH": str(Path(sampler.__file__).parents[2])},
    )
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    if launcher == "torchrun":
        command, ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *command], [{}]
    started = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)]
    try:
        started.extend(
            subprocess.Popen([sys.executable, *command], env={**environment, **rank}, start_new_session=True)
            for rank in ranks
        )
        assert [item.wait(120) for item in started[1:]] == [0] * len(ranks)
    finally:
        for item in started:
            item.kill()
            item.communicate()
    jiffies, *processes = (tmp_path / "found").read_text().split()
    assert set(processes) == {(tmp_path / name).read_text() for name in ("pid0", "pid1", "loader")}
    assert float(jiffies) / os.sysconf("SC_CLK_TCK") >= 0.9  # 0.5 s of the other rank, 0.5 s of its loader


def test_a_gpu_is_sampled_as_far_as_nvml_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name must be NVML's own, or it could not be replaced here; what a device does not support is missing."""
    nvml = pytest.importorskip("pynvml")
    answers = {
        "ClockInfo": 1980, "PowerUsage": 350_500, "Temperature": 41, "CurrentClocksEventReasons": 4,
        "CurrPcieLinkGeneration": 5, "ComputeRunningProcesses": [SimpleNamespace(pid=1)],
        "UtilizationRates": SimpleNamespace(gpu=97),
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{name}", lambda *_, answer=answer: answer)

    def unsupported(*_: object) -> None:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)

    for name in ("TotalEccErrors", "CurrPcieLinkWidth"):
        monkeypatch.setattr(nvml, f"nvmlDeviceGet{name}", unsupported)
    asked = []
    monkeypatch.setattr(nvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(nvml, "nvmlDeviceGetHandleByUUID", asked.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234-5678"))
    result = sampler._Gpu(0).read()
    assert asked == ["GPU-1234-5678"]
    assert (result["gpu_power_watts"], result["gpu_throttle_reasons"]) == (350.5, 4)
    assert (result["gpu_ecc_errors"], result["gpu_pcie_width"]) == (None, None)
    assert result["foreign_gpu_processes"] == 0  # the one process there is this one, by the host's number


@pytest.mark.parametrize("module", ["pynvml", "pynvml.nvml"])
def test_without_a_driver_for_nvml_the_host_is_sampled_alone(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Whichever of the two packages that bring `pynvml` is installed."""
    error = type("NVMLError_LibraryNotFound", (Exception,), {"__module__": module})

    def missing(index: int) -> None:
        raise error(index)

    monkeypatch.setattr(sampler, "_Gpu", missing)
    assert [type(reader) for reader in sampler._readers(torch.device("cuda", 0))] == [sampler.Host]


def test_an_error_that_is_not_nvmls_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(index: int) -> None:
        raise ValueError(index)

    monkeypatch.setattr(sampler, "_Gpu", broken)
    with pytest.raises(ValueError, match="0"):
        sampler._readers(torch.device("cuda", 0))


def test_time_held_back_is_a_share_of_what_the_training_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel sums throttled time over processors: four held back half of the time are two seconds a second."""
    uses = iter([QuotaUse(2.0, 10.0), QuotaUse(2.0, 18.0), QuotaUse(None, None)])
    monkeypatch.setattr(sampler, "quota_use", lambda: next(uses))
    clock, jiffies = iter([0.0, 4.0, 8.0]), iter([0.0, 800.0, 1600.0])
    monkeypatch.setattr(sampler.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(sampler, "own_jiffies", lambda: next(jiffies))
    monkeypatch.setattr(sampler.os, "sysconf", lambda _: 100)
    sampled = sampler.Host()
    reading = sampled.read()
    assert (reading["cgroup_throttled"], reading["cpu_quota"]) == (pytest.approx(0.5), 2.0)
    unknown = sampled.read()
    assert (unknown["cgroup_throttled"], unknown["cpu_quota"]) == (None, None)


WITHOUT_PROC = 'mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec $0 -c "$1"'
READINGS = """
import json
from plumbline.environments.control_groups import memory_kills, memory_limit
from plumbline.train.machine.sampler import Host
from plumbline.train.speed import _peak_host_memory
print(json.dumps({**Host().read(), "peak": _peak_host_memory(), "kills": memory_kills(), "limit": memory_limit()}))
"""


@pytest.mark.long
@pytest.mark.mount
def test_a_reading_that_a_system_does_not_have_is_unknown_and_never_zero() -> None:
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", WITHOUT_PROC, sys.executable, READINGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    readings = json.loads(done.stdout)
    known = {name for name, value in readings.items() if value is not None}
    assert (len(readings), known) == (16, {"load", "major_faults"})  # which macOS counts, too


def test_a_mac_s_processor_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sysctl").write_text('#!/bin/sh\n[ "$*" = "-n machdep.cpu.brand_string" ] && echo "Apple M2 Pro"\n')
    (tmp_path / "sysctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fingerprint, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert fingerprint._cpu_model() == "Apple M2 Pro"
    (tmp_path / "sysctl").write_text("#!/bin/sh\nexit 1\n")
    assert fingerprint._cpu_model()


def test_shared_memory_that_does_not_exist_is_not_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_SHARED", tmp_path / "none")
    assert "MiB" not in batches._shared_memory_hint()
