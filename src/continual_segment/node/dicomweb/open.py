"""From addresses on a command line to services that can be asked."""

from __future__ import annotations

import os
from pathlib import Path

from continual_segment.node.dicomweb.address import parse_archive, parse_service
from continual_segment.node.dicomweb.credentials import find_credentials
from continual_segment.node.dicomweb.http import WebService
from continual_segment.node.dicomweb.pull import PullConfig


def open_pull(source: str, store: str | None, credentials: Path | None) -> PullConfig:
    """The archive of `source`, and where results are stored: nowhere (None), there ("") or elsewhere.

    Credentials of the environment are for the archive of `source`, and sent to no other host.
    """
    address, query = parse_archive(source)
    archive = WebService(address, find_credentials(address, credentials, os.environ))
    if store is None:
        return PullConfig(archive, query)
    if not store:
        return PullConfig(archive, query, archive)
    target = parse_service(store)
    environment = os.environ if target.name == address.name else None
    return PullConfig(archive, query, WebService(target, find_credentials(target, credentials, environment)))
