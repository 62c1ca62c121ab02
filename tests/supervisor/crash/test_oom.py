"""Reading the kernel's counters of out-of-memory kills, from folders that imitate /sys and /proc."""

from __future__ import annotations

import os

import pytest

from jobherd.supervisor.crash.oom import EVERY, RECENT, OomWatch


class Kernel:
    """Imitated files of the kernel for control groups v1, v2 or none (0)."""

    def __init__(self, folder, version, *, inside="/app/web"):
        self.root, self.proc, self.version = folder / "cgroup", folder / "proc", version
        (self.proc / "self").mkdir(parents=True)
        line = {2: f"0::{inside}", 1: f"9:name=systemd:/\n4:cpu,memory:{inside}\n0::/", 0: "0::/"}[version]
        (self.proc / "self" / "cgroup").write_text(line + "\n")
        self.top = self.root / "memory" if version == 1 else self.root
        self.group = self.top / "app" / "web"
        self.group.mkdir(parents=True)
        self.kill(0)
        for name, value in {
            2: {"max": "max", "peak": "90", "current": "80"},
            1: {"limit_in_bytes": str((1 << 63) - 4096), "max_usage_in_bytes": "90", "usage_in_bytes": "80"},
            0: {},
        }[version].items():
            (self.group / f"memory.{name}").write_text(value + "\n")

    def kill(self, count):
        if self.version == 2:
            (self.group / "memory.events").write_text(
                f"low 0\nhigh 0\nmax 7\noom {count}\noom_kill {count}\noom_group_kill 0\n"
            )
        elif self.version == 1:
            (self.group / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n")
        else:
            (self.proc / "vmstat").write_text(f"nr_free_pages 7\noom_kill {count}\n")

    def watch(self):
        return OomWatch(root=str(self.root), proc=str(self.proc))


@pytest.mark.parametrize("version", [2, 1, 0])
def test_each_oom_kill_explains_one_death_within_five_seconds(tmp_path, version):
    kernel = Kernel(tmp_path, version)
    kernel.kill(3)
    watch = kernel.watch()
    assert not watch.claim(100.0), "kills from before the start explain no death"
    kernel.kill(5)
    assert (watch.claim(101.0), watch.claim(101.0), watch.claim(101.0)) == (True, True, False)
    kernel.kill(6)
    watch.look(110.0)
    kernel.kill(7)
    assert watch.claim(110.0 + EVERY)
    assert not watch.claim(110.0 + RECENT + 0.1), "the kill is too old and was of another program"
    assert watch.evidence()["oom_kills"] == 7


@pytest.mark.parametrize("version", [2, 1])
def test_memory_limit_is_the_lowest_of_the_group_and_its_parents(tmp_path, version):
    kernel = Kernel(tmp_path, version)
    evidence = kernel.watch().evidence()
    path = str(kernel.group)[len(str(kernel.root)) :]
    assert evidence == {
        "counted": "control group",
        "oom_kills": 0,
        "version": version,
        "group": path,
        "limit": None,
        "peak": 90,
        "used": 80,
    }
    name = {2: "memory.max", 1: "memory.limit_in_bytes"}[version]
    (kernel.group / name).write_text("4000000\n")
    (kernel.group.parent / name).write_text("3000000\n")
    assert kernel.watch().evidence()["limit"] == 3_000_000


@pytest.mark.parametrize("version", [2, 1])
def test_container_reads_its_group_at_the_top_whatever_its_name_outside(tmp_path, version):
    kernel = Kernel(tmp_path, version, inside="/docker/0123abcd")
    for name in os.listdir(kernel.group):
        os.rename(kernel.group / name, kernel.top / name)
    kernel.group = kernel.top
    watch = kernel.watch()
    kernel.kill(1)
    assert watch.claim(1.0)
    assert watch.evidence()["version"] == version


def test_host_without_kernel_counters_reports_no_oom_kills(tmp_path):
    watch = OomWatch(root=str(tmp_path), proc=str(tmp_path))
    assert not watch.claim(1.0)
    assert watch.evidence() == {"counted": "machine", "oom_kills": 0}
