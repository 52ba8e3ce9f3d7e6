"""Quota and throttled time of the process's own control groups, in trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.environments.control_groups import QuotaUse, memory_kills, memory_limit, quota_use


def tree(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Path:
    """Write a process's folder and its groups' files; return the process's folder."""
    (root / "self").mkdir(parents=True)
    (root / "self/cgroup").write_text(groups)
    (root / "self/mountinfo").write_text(mounts.replace("MNT", str(root)))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "self"


V2 = "31 23 0:28 / MNT/v2 rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = """\
32 31 0:29 {root} MNT/cpu rw - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 / MNT/memory rw - cgroup cgroup rw,memory
"""
HELD = "usage_usec 9\nnr_periods 9\nnr_throttled 5\nthrottled_usec 2500000\n"
FREE = "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"


def test_a_slice_above_the_services_group_holds_it_back(tmp_path: Path) -> None:
    """A systemd service without a limit, in a slice with one: the root's own file knows nothing of either."""
    files = {
        "v2/cpu.stat": "usage_usec 9\n",
        "v2/batch.slice/cpu.max": "150000 100000\n", "v2/batch.slice/cpu.stat": HELD,
        "v2/batch.slice/job.service/cpu.max": "max 100000\n", "v2/batch.slice/job.service/cpu.stat": FREE,
    }  # fmt: skip
    process = tree(tmp_path, "0::/batch.slice/job.service\n", V2, files)
    assert quota_use(process) == QuotaUse(1.5, 2.5)


def test_the_tightest_quota_counts(tmp_path: Path) -> None:
    files = {
        "v2/a/cpu.max": "400000 100000\n", "v2/a/cpu.stat": FREE,
        "v2/a/b/cpu.max": "50000 100000\n", "v2/a/b/cpu.stat": HELD,
    }  # fmt: skip
    assert quota_use(tree(tmp_path, "0::/a/b\n", V2, files)) == QuotaUse(0.5, 2.5)


@pytest.mark.parametrize(("root", "below"), [("/", "slurm/job_7/"), ("/slurm/job_7", "")])
def test_version_1_is_read_at_the_processes_own_group(tmp_path: Path, root: str, below: str) -> None:
    """Once from the machine, once from inside a container, whose mount begins at its own group."""
    files = {
        "cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        f"cpu/{below}cpu.cfs_quota_us": "20000\n", f"cpu/{below}cpu.cfs_period_us": "100000\n",
        f"cpu/{below}cpu.stat": "nr_periods 1465\nnr_throttled 1251\nthrottled_time 99000000000\n",
    }  # fmt: skip
    process = tree(tmp_path, "4:memory:/\n3:cpu,cpuacct:/slurm/job_7\n0::/\n", V1.format(root=root) + V2, files)
    assert quota_use(process) == QuotaUse(0.2, 99.0)


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/a\n", {"v2/a/cpu.max": "max 100000\n", "v2/a/cpu.stat": FREE}, QuotaUse(None, 0.0)),
        ("0::/a\n", {"v2/a/cgroup.procs": ""}, QuotaUse()),
        ("0::/../outside\n", {"v2/cpu.stat": FREE, "outside/cpu.stat": HELD}, QuotaUse()),
        ("0::/gone\n", {"v2/cpu.stat": FREE}, QuotaUse()),
        ("", {"v2/cpu.stat": FREE}, QuotaUse()),
        ("nonsense\n", {"v2/cpu.stat": FREE}, QuotaUse()),
    ],
    ids=["no quota", "no controller", "outside of the namespace", "no folder", "empty", "unreadable"],
)
def test_what_the_kernel_does_not_say_is_unknown(
    tmp_path: Path, groups: str, files: dict[str, str], found: QuotaUse
) -> None:
    assert quota_use(tree(tmp_path, groups, V2, files)) == found


@pytest.mark.parametrize("root", ["/", "/pods/one"])
def test_kills_are_the_own_groups_and_the_tightest_limit_counts(tmp_path: Path, root: str) -> None:
    """Version 1, whose root states its largest number where there is no limit."""
    below = "pods/one/" if root == "/" else ""
    files = {
        f"memory/{below}memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        f"memory/{below}memory.limit_in_bytes": "1073741824\n",
        **({} if below == "" else {"memory/memory.limit_in_bytes": "9223372036854771712\n"}),
    }
    mounts = f"33 31 0:30 {root} MNT/memory rw - cgroup cgroup rw,memory\n"
    process = tree(tmp_path, "4:memory:/pods/one\n", mounts, files)
    assert (memory_kills(process), memory_limit(process)) == (3, 1 << 30)
    unknown = tree(tmp_path / "none", "", mounts, {})
    assert (memory_kills(unknown), memory_limit(unknown)) == (None, None)
