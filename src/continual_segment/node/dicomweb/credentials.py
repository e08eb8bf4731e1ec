"""Credentials: from the environment or a file, for one host and port, and never for another.

CONSEG_DICOMWEB_TOKEN, or CONSEG_DICOMWEB_USER and CONSEG_DICOMWEB_PASSWORD

["pacs.example.org:443"]            a TOML file that its owner alone may read
token = "..."                       or user and password
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from continual_segment.errors import ConfigError
from continual_segment.files.records import as_record, read_toml, refuse_unknown
from continual_segment.node.dicomweb.address import WebAddress

VARIABLES = {name: f"CONSEG_DICOMWEB_{name.upper()}" for name in ("token", "user", "password")}
ADVICE = "docs/dicomweb.md describes credentials."


@dataclass(frozen=True)
class Credentials:
    """A token, or a user and a password; neither is ever shown."""

    token: str = field(default="", repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.token) == bool(self.user or self.password):
            raise ValueError("credentials are a token, or a user and a password.")
        if not (self.token.isascii() and (self.token + self.user + self.password).isprintable()):
            raise ValueError("credentials contain a character that a header cannot have.")
        if ":" in self.user:  # it ends the user in the header
            raise ValueError("a user has no colon.")

    @property
    def header(self) -> str:
        """Value of `Authorization`."""
        if self.token:
            return f"Bearer {self.token}"
        return f"Basic {base64.b64encode(f'{self.user}:{self.password}'.encode()).decode()}"


def find_credentials(
    address: WebAddress, file: Path | None, environment: Mapping[str, str] | None = None
) -> Credentials | None:
    """Those for an address: the file's, else the environment's where one is given."""
    found = read_credentials(file).get(address.name) if file else None
    if found is None and environment is not None:
        given = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
        found = as_credentials(given, ", ".join(VARIABLES.values())) if any(given.values()) else None
    if found and not (address.secure or address.is_loopback):
        raise ConfigError(f"{address}: credentials are not sent without encryption. Use an https address.")
    return found


def read_credentials(path: Path) -> dict[str, Credentials]:
    """Credentials by host and port."""
    tables = read_toml(path, dict, ConfigError, ADVICE)
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: others may read these credentials. Run: chmod 600 {path}")
    for name, table in tables.items():
        refuse_unknown(table, Credentials, f"{path}: [{name}]", ConfigError)
    return {name: as_credentials(table, f"{path}: [{name}]") for name, table in tables.items()}


def as_credentials(values: Mapping[str, str], where: str) -> Credentials:
    return as_record(dict(values), Credentials, where, ConfigError, ADVICE)
