"""NodeConfig: all that a node does, from one TOML file.

In:  the path of a TOML file; paths in it start at its folder
Out: NodeConfig, or a ConfigError that names the file, the table and the setting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal

from continual_segment.clinic.formats import canonical_format
from continual_segment.errors import ConfigError
from continual_segment.files.records import as_record, read_toml, refuse_unknown
from continual_segment.model.starter import model_folder
from continual_segment.node.dicomweb.address import parse_service
from continual_segment.segmentation import SegmentConfig

LOOPBACK = ("127.0.0.0/8", "::1/128")
DICOM_FORMATS = ("dicom_seg", "dicom_labelmap", "rtstruct")
LONGEST_AE_TITLE = 16


@dataclass(frozen=True)
class TlsConfig:
    """PEM files; with them every connection is encrypted and both sides show a certificate."""

    certificate: Path
    key: Path
    authorities: Path
    """Certificates of those who may sign the other side's certificate."""


@dataclass(frozen=True)
class ListenConfig:
    """Where the node is reached, and by whom."""

    ae_title: str = "CONSEG"
    host: str = "127.0.0.1"
    """Address to bind to; 0.0.0.0 for all of the machine."""
    port: int = 11112
    """0: any that is free."""
    calling_ae_titles: tuple[str, ...] = ()
    """AE titles that may send; empty: all."""
    addresses: tuple[str, ...] = LOOPBACK
    """Addresses and networks that may connect; others are disconnected before a byte is read."""
    silence_seconds: float = 60.0
    """A series is complete when no slice of it has come for so long."""
    health_port: int = 11180
    """Of the health page, on loopback; 0: any that is free."""

    def __post_init__(self) -> None:
        for title in (self.ae_title, *self.calling_ae_titles):
            check_ae_title(title)
        check_port(self.port)
        check_port(self.health_port)
        for address in self.addresses:
            ip_network(address, strict=False)  # ValueError names what is wrong
        if not 0 < self.silence_seconds <= 86400:
            raise ValueError(f"silence_seconds is above 0 and at most a day, not {self.silence_seconds}.")

    def allows(self, address: str) -> bool:
        """Whether a peer at this address may connect."""
        peer = ip_address(address.partition("%")[0])  # IPv6 addresses may end in their zone
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in ip_network(each, strict=False) for each in self.addresses)


@dataclass(frozen=True)
class Destination:
    """Where results are sent: a DICOM node (host, port, ae_title) or a DICOMweb service (url)."""

    name: str
    host: str = ""
    port: int = 0
    ae_title: str = ""
    formats: tuple[str, ...] = ("dicom_seg",)
    """dicom_seg, dicom_labelmap, rtstruct."""
    url: str = ""
    """Root of a DICOMweb service, such as https://pacs.example.org/dicom-web, for STOW-RS."""
    credentials: Path | None = None
    """TOML file with the credentials for the url's host."""

    def __post_init__(self) -> None:
        if self.url:
            self._check_web()
        else:
            check_ae_title(self.ae_title)
            check_port(self.port)
        if not self.url and (not self.host or self.credentials):
            raise ValueError("a destination has host, port and ae_title, or a url and perhaps credentials.")
        formats = tuple(map(canonical_format, self.formats))
        if wrong := [each for each in formats if each not in DICOM_FORMATS] or (not formats and ["nothing"]):
            raise ValueError(f"formats are of {', '.join(DICOM_FORMATS)}, not {wrong[0]}.")
        object.__setattr__(self, "formats", formats)

    def _check_web(self) -> None:
        if self.host or self.port or self.ae_title:
            raise ValueError("a destination with a url has neither host nor port nor ae_title.")
        try:
            parse_service(self.url)
        except ConfigError as error:  # msgspec adds the path of the setting to a ValueError
            raise ValueError(str(error)) from error


@dataclass(frozen=True)
class Rule:
    """Which series are segmented, by what; the first rule that matches a series counts.

    Patterns are compared without case; * is any text, ? any letter. An empty list matches everything.
    """

    model: tuple[Path, ...]
    """One model folder, or several whose labels are merged; `starter` is the model in the package."""
    description: tuple[str, ...] = ()
    """Patterns of SeriesDescription."""
    body_part: tuple[str, ...] = ()
    """Patterns of BodyPartExamined."""
    calling_ae_titles: tuple[str, ...] = ()
    """Patterns of the sender's AE title."""
    thickness_mm: tuple[float, float] = (0.0, 1000.0)
    """Least and greatest SliceThickness; a series that does not state it has 0."""
    fewest_slices: int = 3
    """Localisers and single images have fewer."""
    organs: tuple[str, ...] = ()
    """Organs to segment; empty: all."""
    packs: tuple[str, ...] = ()
    """Packs to run; empty: all."""
    pick: Literal["thinnest", "most-slices"] | None = None
    """Which stack of slices to take where several share one SeriesInstanceUID, such as phases; without a rule
    such a series is set aside."""
    destinations: tuple[str, ...] = ()
    """Names of those who get the results; empty: all."""
    segment: SegmentConfig = field(default_factory=SegmentConfig)
    """How it is computed: device, overlap, merge and the like."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model names at least one model folder.")


@dataclass(frozen=True)
class Limits:
    """What is refused, so that no sender fills memory or disk."""

    instance_mb: float = 1024.0
    """Of one object; the connection ends where more comes."""
    instances_per_series: int = 20_000
    instances_per_minute: int = 30_000
    """From one address."""
    associations: int = 16
    """At the same time."""
    free_disk_mb: float = 2048.0
    """With less free disk nothing is accepted."""
    seconds_per_series: float = 7200.0
    """Segmenting that takes longer is stopped and counts as a failed attempt."""
    keep_hours: float = 72.0
    """Slices and results of a finished series are deleted after so long."""


@dataclass(frozen=True)
class Retries:
    """How often and when what failed is tried again; the waiting time doubles each time."""

    segment: int = 3
    """Attempts to segment a series."""
    send: int = 20
    """Attempts to send a result to a destination."""
    first_wait_seconds: float = 30.0
    longest_wait_seconds: float = 3600.0

    def wait_seconds(self, attempts: int) -> float:
        """Time until the next attempt, after so many."""
        return min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** min(attempts - 1, 30))


@dataclass(frozen=True)
class NodeConfig:
    """A node."""

    folder: Path
    """For the queue, received slices and results; on a disk of the machine itself."""
    destinations: tuple[Destination, ...]
    rules: tuple[Rule, ...]
    listen: ListenConfig = field(default_factory=ListenConfig)
    limits: Limits = field(default_factory=Limits)
    retries: Retries = field(default_factory=Retries)
    tls: TlsConfig | None = None
    """Without it DICOM connections are not encrypted."""

    def __post_init__(self) -> None:
        plain = [each.name for each in self.destinations if each.url and not parse_service(each.url).secure]
        if self.tls and plain:
            raise ValueError(
                f"with [tls] all connections are encrypted, but the url of '{plain[0]}' is http."
            )
        names = [each.name for each in self.destinations]
        if not names or len(set(names)) < len(names):
            raise ValueError("there is at least one destination, and each has a name of its own.")
        wanted = {name for rule in self.rules for name in rule.destinations}
        if unknown := sorted(wanted - set(names)):
            raise ValueError(f"a rule names the destination '{unknown[0]}'; there are {', '.join(names)}.")

    def destinations_of(self, rule: Rule) -> list[Destination]:
        return [each for each in self.destinations if not rule.destinations or each.name in rule.destinations]


def read_node_config(path: Path) -> NodeConfig:
    """The config in a TOML file, its paths absolute."""
    advice = "docs/node.md lists all settings."
    tables = read_toml(path, dict, ConfigError, advice)
    refuse_unknown(tables, NodeConfig, str(path), ConfigError)
    config = as_record(tables, NodeConfig, str(path), ConfigError, advice)
    home = path.resolve().parent
    tls = config.tls and TlsConfig(*(home / each for each in vars(config.tls).values()))
    rules = tuple(replace(rule, model=_below(home, rule.model)) for rule in config.rules)
    destinations = tuple(
        replace(each, credentials=each.credentials and home / each.credentials)
        for each in config.destinations
    )
    return replace(config, folder=home / config.folder, destinations=destinations, rules=rules, tls=tls)


def _below(home: Path, paths: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(home / model_folder(str(path), home) for path in paths)


def check_ae_title(title: str) -> None:
    if not title.strip() or len(title) > LONGEST_AE_TITLE or not title.isascii() or "\\" in title:
        raise ValueError(f"an AE title has 1 to {LONGEST_AE_TITLE} ASCII characters, unlike {title!r}.")


def check_port(port: int) -> None:
    if not 0 <= port < 2**16:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}.")
