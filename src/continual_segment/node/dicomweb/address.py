"""Addresses of DICOMweb services, as they are written on a command line or in a configuration.

    dicomweb://HOST[:PORT]/ROOT[/studies/UID[/series/UID]][?Attribute=Value&...]     https
    dicomweb+http://...                                                              not encrypted

In:  text
Out: WebAddress and SeriesQuery, or a ConfigError
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

from continual_segment.errors import ConfigError
from continual_segment.files.dicom.instance import LONGEST_UID, UID
from continual_segment.names import printable

SECURE = {"dicomweb": True, "https": True, "dicomweb+http": False, "http": False}
"""Whether a scheme is encrypted."""
HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.IGNORECASE)
PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?")
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9]*|[0-9A-Fa-f]{8}")
OWN_PARAMETERS = ("limit", "offset", "includefield", "fuzzymatching", "modality")
"""That are set here, or would change what is searched."""
SERIES_PATH = re.compile(r"(?P<root>.*?)/studies/(?P<study>[^/]+)(/series/(?P<series>[^/]+))?/?")


@dataclass(frozen=True)
class WebAddress:
    """The root of a DICOMweb service."""

    host: str
    port: int
    path: str
    """Without a slash at its end."""
    secure: bool = True

    @property
    def name(self) -> str:
        """Host and port: what credentials belong to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.name}{self.path}"


@dataclass(frozen=True)
class SeriesQuery:
    """Which CT series of an archive are meant."""

    study: str | None = None
    series: str | None = None
    filters: tuple[tuple[str, str], ...] = ()
    """Attributes and the values to match, such as StudyDate and 20260101-20260131."""

    def target(self, fields: str, limit: int, offset: int) -> str:
        """Path and parameters of a search, below the root of the service."""
        path = f"/studies/{self.study}/series" if self.study else "/series"
        own = [("SeriesInstanceUID", self.series)] if self.series else []
        values = [*own, *self.filters, ("Modality", "CT"), ("includefield", fields)]
        text = urlencode([*values, ("limit", limit), ("offset", offset)], quote_via=quote, safe=",*-")
        return f"{path}?{text}"


def parse_service(text: str) -> WebAddress:
    """The root of a service."""
    parts = _split(text)
    if parts.query:
        raise _wrong(text, "has a query; the root of a DICOMweb service has none")
    return _address(parts, parts.path)


def parse_archive(text: str) -> tuple[WebAddress, SeriesQuery]:
    """The root of a service, and which of its series are meant."""
    parts = _split(text)
    found = SERIES_PATH.fullmatch(parts.path)
    root, study, series = (
        (found["root"], found["study"], found["series"]) if found else (parts.path, None, None)
    )
    for uid in filter(None, (study, series)):
        if not is_uid(uid):
            raise _wrong(text, f"has {printable(repr(uid), 80)} in the place of a UID")
    filters = _filters(text, parts.query)
    for name, _ in filters:
        if not ATTRIBUTE.fullmatch(name) or name.lower() in OWN_PARAMETERS:
            raise _wrong(text, f"searches for {printable(repr(name), 80)}, which cannot be chosen")
    return _address(parts, root), SeriesQuery(study, series, filters)


def _filters(text: str, query: str) -> tuple[tuple[str, str], ...]:
    try:
        return tuple(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else ()
    except ValueError as error:
        raise _wrong(text, "has a search that is not of the form Attribute=Value&...") from error


def is_uid(text: object) -> bool:
    """Whether a value has the form of a UID; such a value is safe in a path."""
    return isinstance(text, str) and len(text) <= LONGEST_UID and UID.fullmatch(text) is not None


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # ValueError where it is no number
    except ValueError as error:
        raise ConfigError(f"The address of an archive cannot be read ({error}). {_FORM}") from error
    if parts.username is not None or parts.password is not None:  # not shown: it is a secret
        raise ConfigError(
            "The address of an archive has a user or password in it, which others on this machine can read. "
            "Use environment variables or a file of credentials (docs/dicomweb.md)."
        )
    if parts.scheme.lower() not in SECURE:
        raise _wrong(text, "does not start with dicomweb:// or https://")
    if parts.fragment:
        raise _wrong(text, "has a part after #")
    return parts


def _address(parts: SplitResult, path: str) -> WebAddress:
    host, secure = parts.hostname or "", SECURE[parts.scheme.lower()]
    if not (HOST.fullmatch(host) or _is_ip(host)):
        raise _wrong(parts.geturl(), "names no host")
    if not PATH.fullmatch(path):
        raise _wrong(parts.geturl(), f"has a path that cannot be used, {printable(repr(path), 80)}")
    return WebAddress(host, parts.port or (443 if secure else 80), path.rstrip("/"), secure)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


_FORM = (
    "Expected: dicomweb://HOST:PORT/ROOT/studies/UID/series/UID or dicomweb://HOST:PORT/ROOT?PatientID=..."
)


def _wrong(text: str, problem: str) -> ConfigError:
    return ConfigError(f"The address {printable(text, 120)} {problem}. {_FORM}")
