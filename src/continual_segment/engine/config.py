"""EngineConfig: where tasks are computed, how often each is tried and how long it may take.

An address comes from the command line and decides who receives the tasks, so nothing but a host and a port,
or a scheduler file, is accepted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from continual_segment.errors import ConfigError
from continual_segment.names import printable

HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]"
ADDRESS = re.compile(rf"dask(?P<tls>\+tls)?://(?P<host>{HOST}):(?P<port>[0-9]{{1,5}})")
FILE = re.compile(r"dask://(?P<path>/.+)")
IN_FILE = re.compile(rf"(?P<scheme>tcp|tls)://(?P<host>{HOST}):(?P<port>[0-9]{{1,5}})")
EXPECTED = (
    "dask://HOST:PORT, dask+tls://HOST:PORT or dask:///PATH/scheduler.json, such as dask://scheduler:8786"
)
LARGEST_PORT = 65535
LARGEST_FILE = 2**20


@dataclass(frozen=True)
class EngineConfig:
    """An engine that runs tasks on other machines."""

    address: str
    """dask://HOST:PORT of a scheduler of dask.distributed, dask+tls://HOST:PORT, or dask:///PATH of the file
    that a scheduler wrote with --scheduler-file."""
    attempts: int = 3
    """How often a task is tried in all, on different workers where there are some."""
    seconds: float | None = 7200.0
    """A task that takes longer is stopped, which counts as a failed attempt; None: no limit."""

    def __post_init__(self) -> None:
        if not (ADDRESS.fullmatch(self.address) or FILE.fullmatch(self.address)):
            raise ConfigError(f"--engine is {EXPECTED}, not {printable(self.address)!r}.")
        if found := ADDRESS.fullmatch(self.address):
            check_port(found["port"], "--engine")
        if self.attempts < 1:
            raise ConfigError(f"--attempts is at least 1, not {self.attempts}.")
        if self.seconds is not None and not 0 < self.seconds < float("inf"):
            raise ConfigError(f"--time-limit is a number of seconds above 0, not {self.seconds}.")

    @property
    def scheduler(self) -> str:
        """The scheduler's address as Dask spells it; read from its file where one is named."""
        if found := ADDRESS.fullmatch(self.address):
            return f"{'tls' if found['tls'] else 'tcp'}://{found['host']}:{found['port']}"
        return address_in(Path(self.address.removeprefix("dask://")))


def address_in(path: Path) -> str:
    """The address in the file of a scheduler."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError("larger than 1 MB")
        address = json.loads(path.read_text(encoding="utf-8"))["address"]
        found = IN_FILE.fullmatch(address)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path}: not a readable scheduler file ({printable(str(error))}). Start the scheduler with "
            f"`dask scheduler --scheduler-file {path}` first, on storage that this machine shares."
        ) from error
    if not found:
        raise ConfigError(f"{path}: its address is {printable(address)!r}, not tcp:// or tls://HOST:PORT.")
    check_port(found["port"], str(path))
    return address


def check_port(port: str, what: str) -> None:
    if not 1 <= int(port) <= LARGEST_PORT:
        raise ConfigError(f"{what}: a port is a number from 1 to {LARGEST_PORT}, not {port}.")
