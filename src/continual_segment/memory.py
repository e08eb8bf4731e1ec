"""Keep freed memory in the process.

glibc gives large blocks back to the system as soon as they are freed; every layer of a network then waits
for the kernel to clear new pages. Told to keep them, it does so no more; benchmarks/malloc_thresholds.py
measures what that gains on the machine at hand. Where there is no glibc nothing happens.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LARGEST_KEPT = 2**31 - 1
LARGEST_FROM_HEAP = 2**30


def keep_freed_memory() -> bool:
    """Raise glibc's thresholds for this process; True where that took effect."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # other systems, other libc
        return False
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
