"""Receive: C-ECHO and C-STORE of CT images; an instance is on the disk before success is answered.

Peers are not trusted: addresses that are not allowed are disconnected before a byte is read, sizes and rates
are limited while data comes in, and UIDs never become paths.
"""

from __future__ import annotations

import logging
import sqlite3
import ssl
import threading
import time
from socketserver import TCPServer
from typing import Any
from weakref import WeakKeyDictionary

from pynetdicom import AE, evt
from pynetdicom.sop_class import Verification
from pynetdicom.transport import ThreadedAssociationServer

from continual_segment.errors import ScanError
from continual_segment.files.dicom.compression import readable_syntaxes
from continual_segment.files.dicom.instance import CT_CLASSES, Instance, instance_of
from continual_segment.names import printable
from continual_segment.node.config import Limits, ListenConfig
from continual_segment.node.queue import Queue, id_of
from continual_segment.node.store import Store

log = logging.getLogger(__name__)

SUCCESS, OUT_OF_RESOURCES, DOES_NOT_MATCH, CANNOT_UNDERSTAND = 0x0000, 0xA700, 0xA900, 0xC000
"""Of C-STORE, DICOM PS3.4 B.2.3."""
LARGEST_PDU_BYTES = 128 * 1024
"""That we ask for; a peer's own PDUs, such as its request, may be larger by a factor."""
PDU_FACTOR = 16


class Refused(Exception):
    """An instance that is not accepted."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RateLimit:
    """Counts what comes from each address within a minute."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._minute = 0
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()

    def allows(self, address: str) -> bool:
        with self._lock:
            minute = int(time.monotonic() // 60)
            if minute != self._minute:
                self._minute, self._counts = minute, {}
            self._counts[address] = self._counts.get(address, 0) + 1
            return self._counts[address] <= self.per_minute


class Receiver:
    """Takes instances from the network to disk and queue."""

    def __init__(self, limits: Limits, queue: Queue, store: Store) -> None:
        self.limits, self.queue, self.store = limits, queue, store
        self._rate = RateLimit(limits.instances_per_minute)
        self._bytes: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @property
    def handlers(self) -> list[Any]:
        """Events of pynetdicom with what they call."""
        return [
            (evt.EVT_CONN_OPEN, limit_pdus),
            (evt.EVT_DATA_RECV, self.count_bytes),
            (evt.EVT_DIMSE_RECV, self.count_from_zero),
            (evt.EVT_C_STORE, self.answer),
            (evt.EVT_REJECTED, log_rejected),
        ]

    def count_bytes(self, event: Any) -> None:
        """End the connection where a message is larger than any instance may be."""
        received = self._bytes[event.assoc] = self._bytes.get(event.assoc, 0) + len(event.data)
        if received > self.limits.instance_mb * 2**20:
            log.warning(
                "%s: disconnected, more than %g MB in one object.", peer(event), self.limits.instance_mb
            )
            event.assoc.abort()

    def count_from_zero(self, event: Any) -> None:
        self._bytes[event.assoc] = 0

    def answer(self, event: Any) -> int:
        """The status of a C-STORE."""
        try:
            self._accept(event)
        except Refused as refused:
            log.warning("%s: an object was refused: %s", peer(event), refused)
            return refused.status
        except (OSError, sqlite3.Error) as error:
            log.error("%s: an object was not stored: %s", peer(event), error)
            return OUT_OF_RESOURCES
        return SUCCESS

    def _accept(self, event: Any) -> None:
        self._check_resources(event.assoc.requestor.address)
        content = event.encoded_dataset()
        instance = self._instance(event, content)
        series, name = id_of(instance.series_uid), id_of(instance.uid)
        if instance.is_own:
            log.info("%s: a result of our own came back and is left alone.", peer(event))
        elif not self.queue.has(series, name):
            self._check_length(series)
            self.store.write(series, name, content)
            if not self.queue.add(series, name, instance.frames, event.assoc.requestor.ae_title):
                raise Refused(
                    OUT_OF_RESOURCES, "its series is being deleted; it can be sent again in a moment."
                )

    def _check_resources(self, address: str) -> None:
        if not self._rate.allows(address):
            raise Refused(
                OUT_OF_RESOURCES, f"more than {self.limits.instances_per_minute} objects in a minute."
            )
        if (free := self.store.free_mb()) < self.limits.free_disk_mb:
            raise Refused(
                OUT_OF_RESOURCES, f"{free:.0f} MB of disk are free; {self.limits.free_disk_mb:g} are kept."
            )

    def _check_length(self, series: str) -> None:
        if self.queue.count_instances(series) >= self.limits.instances_per_series:
            raise Refused(
                OUT_OF_RESOURCES,
                f"its series has {self.limits.instances_per_series} objects, the most allowed.",
            )

    def _instance(self, event: Any, content: bytes) -> Instance:
        try:
            found = instance_of(content)
        except ScanError as error:
            raise Refused(CANNOT_UNDERSTAND, str(error)) from error
        announced = (str(event.request.AffectedSOPClassUID), str(event.request.AffectedSOPInstanceUID))
        if found.sop_class not in CT_CLASSES or (found.sop_class, found.uid) != announced:
            raise Refused(DOES_NOT_MATCH, "its SOP class or UID is not the one that was announced.")
        return found


def start_server(
    listen: ListenConfig, receiver: Receiver, context: ssl.SSLContext | None
) -> ThreadedAssociationServer:
    """Listen in threads of their own; `shutdown` ends them."""

    class Server(ThreadedAssociationServer):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            allowed = listen.allows(client_address[0])
            if not allowed:
                log.warning("%s: disconnected, the address is not allowed.", client_address[0])
            return allowed

        def get_request(self) -> tuple[Any, Any]:
            client, address = self.socket.accept()
            if context is not None:  # the handshake comes with the first read, so that no peer delays others
                client = context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)
            return client, address

        def shutdown(self) -> None:
            TCPServer.shutdown(self)  # pynetdicom's own expects that the entity has started the server
            self.server_close()

    entity = AE(ae_title=listen.ae_title)
    entity.require_called_aet = True
    entity.require_calling_aet = list(listen.calling_ae_titles)
    entity.maximum_associations = receiver.limits.associations
    entity.maximum_pdu_size = LARGEST_PDU_BYTES
    entity.add_supported_context(Verification)
    for each in CT_CLASSES:
        entity.add_supported_context(each, readable_syntaxes())
    server = entity.make_server(
        (listen.host, listen.port), evt_handlers=receiver.handlers, server_class=Server
    )
    threading.Thread(target=server.serve_forever, name="receive", daemon=True).start()
    return server


def limit_pdus(event: Any) -> None:
    """Let reading fail where a PDU claims a length that no sound peer uses; it would fill the memory."""
    socket = event.assoc.dul.socket
    read = socket.recv

    def read_some(count: int) -> bytearray:
        if count > PDU_FACTOR * LARGEST_PDU_BYTES:
            raise OSError(f"A PDU of {count} bytes was announced.")
        return read(count)

    socket.recv = read_some


def log_rejected(event: Any) -> None:
    log.warning("%s: association rejected; AE titles or the number of connections.", peer(event))


def peer(event: Any) -> str:
    """A sender, for the log."""
    requestor = event.assoc.requestor
    return f"{printable(requestor.ae_title, 16)} at {requestor.address}"
