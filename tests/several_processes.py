"""Start a script in several processes with the variables that torchrun sets, without the time it takes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
SECONDS = 300


def run_together(count, *command):
    """Run `python COMMAND` in `count` processes; return exit codes and what each wrote to standard error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=os.environ | variables(rank, count, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        errors = [process.communicate(timeout=SECONDS)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


def variables(rank, count, port):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(SOURCE),
    }
