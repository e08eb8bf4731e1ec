"""glibc keeps freed memory where it is told to."""

import ctypes
import platform

import pytest

from continual_segment import memory


def test_it_takes_effect_on_glibc():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    assert memory.keep_freed_memory()


def test_without_glibc_nothing_happens(monkeypatch):
    def missing(name):
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not memory.keep_freed_memory()
    assert not memory.give_back_freed_memory()


def test_what_was_kept_can_be_given_back(python):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("this system has no glibc, so there is nothing to tell it")
    script = """
import numpy as np
from continual_segment.memory import give_back_freed_memory, keep_freed_memory

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
