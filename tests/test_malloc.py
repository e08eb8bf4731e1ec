"""glibc keeps freed memory as its settings require."""

import ctypes
import os
import platform

import pytest

from continual_segment import malloc


def test_it_takes_effect_on_glibc():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    assert malloc.keep_freed_memory()


def test_without_glibc_nothing_happens(monkeypatch):
    def missing(name):
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not malloc.keep_freed_memory()
    assert not malloc.give_back_freed_memory()
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    malloc.start_again_with_malloc_settings()


def test_freed_tensors_leave_no_gaps(python, tmp_path):
    """Three or four of 16 MB at a time; with all of malloc's caches that takes the room of nine."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    script = tmp_path / "script.py"
    script.write_text("""
from continual_segment.malloc import keep_freed_memory, start_again_with_malloc_settings
start_again_with_malloc_settings()
import torch

def make():
    return torch.ones(2**22)

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

keep_freed_memory()
before = resident_mb()
for _ in range(12):
    first, second = make(), make()
    del first
    third, fourth = make(), make()
    del second
    fifth = make()
    del third, fourth, fifth
print(resident_mb() - before)
""")
    out, _ = python(script).communicate(timeout=60)
    assert 40 < int(out) < 100


def test_a_program_starts_again_once_with_its_arguments_and_in_its_own_process(python, tmp_path, monkeypatch):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)  # a test that ran a worker in this process leaves it
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from continual_segment.malloc import start_again_with_malloc_settings\n"
        "print(os.getpid(), os.environ.get('GLIBC_TUNABLES'), sys.argv[1:], flush=True)\n"
        "start_again_with_malloc_settings()\n"
        "print('goes on')\n"
    )
    out, _ = python(script, "a b", "--c").communicate(timeout=60)
    first, second, last = out.splitlines()
    number, rest = first.split(" ", 1)
    assert rest == "None ['a b', '--c']"
    assert second == f"{number} glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1 ['a b', '--c']"
    assert last == "goes on"


def test_whoever_starts_the_program_has_the_last_word(monkeypatch):
    given = "glibc.malloc.tcache_count=3:glibc.malloc.hugetlb=0"
    assert malloc.with_malloc_settings(given) == given
    assert malloc.with_malloc_settings("glibc.malloc.hugetlb=0").endswith("=0:glibc.malloc.tcache_count=0")
    monkeypatch.setenv("GLIBC_TUNABLES", given)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    malloc.start_again_with_malloc_settings()


def test_what_was_kept_can_be_given_back(python):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    script = """
import numpy as np
from continual_segment.malloc import give_back_freed_memory, keep_freed_memory

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

keep_freed_memory()
before = resident_mb()
many = [np.ones(2**20) for _ in range(20)]
del many
kept = resident_mb()
give_back_freed_memory()
print(kept - before, resident_mb() - before)
"""
    out, _ = python("-c", script).communicate(timeout=60)
    kept, left = map(int, out.split())
    assert kept > 100
    assert left < 20
