"""Send: results go to their destinations by C-STORE or STOW-RS, as often as it takes, within limits.

A result that was stored although the answer got lost is sent again. It has the same UIDs and bytes then, so
an archive has it once.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pynetdicom import AE

from continual_segment.errors import ContinualSegmentError
from continual_segment.files.dicom.headers import file_at, text
from continual_segment.node.config import Destination, NodeConfig, TlsConfig
from continual_segment.node.dicomweb.address import parse_service
from continual_segment.node.dicomweb.credentials import find_credentials
from continual_segment.node.dicomweb.http import WebService
from continual_segment.node.dicomweb.services import store_file
from continual_segment.node.queue import Delivery, Queue
from continual_segment.node.reason import reason_of
from continual_segment.node.store import Store
from continual_segment.node.tls import client_context

log = logging.getLogger(__name__)

SYNTAXES = ["1.2.840.10008.1.2.1", "1.2.840.10008.1.2"]  # explicit and implicit VR, little endian
STORED_WITH_WARNING = 0xB000
TIMEOUT_SECONDS = 60


class NotSent(ContinualSegmentError):
    """A destination that did not store a result."""


class Sender:
    """Takes deliveries from the queue, one at a time."""

    def __init__(self, config: NodeConfig, queue: Queue, store: Store) -> None:
        self.config, self.queue, self.store = config, queue, store
        self._destinations = {each.name: each for each in config.destinations}

    def step(self) -> bool:
        """Send the next result; False where none is due."""
        delivery = self.queue.next_delivery()
        if delivery is None:
            return False
        try:
            self._send(delivery)
        except Exception as error:  # a damaged result or a bug of ours costs this delivery alone
            log.debug("how it came about", exc_info=error)
            self._failed(delivery, reason_of(error))
        else:
            self.queue.delivered(delivery)
            log.info("series %s: a result was sent to %s.", delivery.series, delivery.destination)
        return True

    def _send(self, delivery: Delivery) -> None:
        destination = self._destinations.get(delivery.destination)
        if destination is None:
            raise NotSent("the configuration has no such destination any more.")
        path = self.store.results / delivery.file
        if destination.url:
            store_file(web_service(destination, self.config.tls), path)
        else:
            send_file(path, destination, self.config.listen.ae_title, self.config.tls)

    def _failed(self, delivery: Delivery, reason: str) -> None:
        retries, attempts = self.config.retries, delivery.attempts + 1
        where = (delivery.series, delivery.destination)
        if attempts >= retries.send:
            log.error("series %s: not sent to %s, given up: %s", *where, reason)
            self.queue.fail_delivery(delivery, reason)
        else:
            wait = retries.wait_seconds(attempts)
            log.warning("series %s: not sent to %s, next attempt in %g s: %s", *where, wait, reason)
            self.queue.retry_delivery(delivery, reason, wait)


def web_service(destination: Destination, tls: TlsConfig | None) -> WebService:
    """A DICOMweb destination; its credentials are read each time, so that they can be renewed."""
    address = parse_service(destination.url)
    context = client_context(tls) if tls else None
    return WebService(address, find_credentials(address, destination.credentials), context)


def send_file(path: Path, destination: Destination, ae_title: str, tls: TlsConfig | None) -> None:
    """Store one file at a destination; NotSent gives the reason where it is not stored."""
    entity = AE(ae_title=ae_title)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = TIMEOUT_SECONDS
    entity.connection_timeout = TIMEOUT_SECONDS
    entity.add_requested_context(text(file_at(path).read(pixels=False), "SOPClassUID"), SYNTAXES)
    secured = (client_context(tls), destination.host) if tls else None
    association = entity.associate(
        destination.host, destination.port, ae_title=destination.ae_title, tls_args=secured
    )
    if not association.is_established:
        why = "rejected the association" if association.is_rejected else "is not reachable"
        raise NotSent(f"{destination.host}:{destination.port} {why}.")
    try:
        answer = association.send_c_store(path)
    except (ValueError, RuntimeError, AttributeError) as error:
        raise NotSent(f"the destination does not accept this kind of object ({error}).") from error
    finally:
        association.release()
    status = answer.get("Status")
    if status is None or (status != 0 and status & 0xF000 != STORED_WITH_WARNING):
        raise NotSent(f"the answer was {'nothing' if status is None else f'0x{status:04X}'}.")
