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
