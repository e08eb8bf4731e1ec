"""How malloc keeps memory between one layer of a network and the next.

glibc gives large blocks back to the system as soon as they are freed; every layer then waits for the kernel
to clear new pages. With these settings it keeps them; benchmarks/malloc_thresholds.py measures the gain on
the machine at hand.

Kept blocks must also fit again. PyTorch requests aligned ones: malloc takes a little more, cuts crumbs off
both ends and puts them into its caches of small blocks, where they are taken for used. A freed tensor is then
some bytes short of the next one of its size, and much of the memory of a whole scan is in such gaps
(docs/performance.md). Without the caches crumbs and block become one again. One of the two can be turned off
at run time, the other one only before the process starts.

Large blocks are read from end to end, over and over. In pages of 2 MB instead of 4 KB the processor finds
them with fewer look-ups. That, too, must be set before the process starts, from glibc 2.35 on.

Where there is no glibc nothing happens.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

M_MXFAST, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3  # malloc.h
LARGEST_KEPT = 2**31 - 1
LARGEST_FROM_HEAP = 2**30
TUNABLES = "GLIBC_TUNABLES"
FROM_THE_START = {"glibc.malloc.tcache_count": "0", "glibc.malloc.hugetlb": "1"}


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds for this process; True where that took effect."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # other systems, other libc
        return False
    mallopt(M_MXFAST, 0)
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_FROM_HEAP)) and bool(
        mallopt(M_TRIM_THRESHOLD, LARGEST_KEPT)
    )


def give_back_freed_memory() -> bool:
    """Hand all that is kept back to the system, once: what the next step needs is of another size."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(ctypes.c_size_t(0)))


def start_again_with_malloc_settings() -> None:
    """Put this program in its own place, same process and arguments, with what malloc reads at the start.

    To be called early in a program, before it holds or has printed anything. Returns where there is nothing
    to be done.
    """
    given = os.environ.get(TUNABLES, "")
    settings = with_malloc_settings(given)
    if settings == given or not _is_glibc() or not sys.executable:
        return
    with suppress(OSError):  # then it runs as it is
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {TUNABLES: settings})


def with_malloc_settings(given: str = "") -> str:
    """Settings of glibc's malloc for networks; those already given stay as they are."""
    missing = [f"{name}={value}" for name, value in FROM_THE_START.items() if name not in given]
    return ":".join([given, *missing] if given else missing)


def _is_glibc() -> bool:
    try:
        return hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
    except (OSError, TypeError):
        return False
