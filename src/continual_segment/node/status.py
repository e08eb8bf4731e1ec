"""Status: what a node is doing, as a table for a person and as JSON for a monitor; no patient is named."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from continual_segment.node.queue import Queue, QueuedSeries
from continual_segment.node.store import Store

SHOWN = 50


@dataclass(frozen=True)
class Health:
    """A node at a glance."""

    ok: bool
    version: str
    series: dict[str, int]
    """Number by state."""
    oldest_waiting_seconds: float
    """Since the series that has waited longest changed."""
    free_disk_mb: float
    problems: list[str]


def oldest_waiting_seconds(all_series: list[QueuedSeries]) -> float:
    waiting = [each.changed for each in all_series if each.state in ("ready", "working", "sending")]
    return round(time.time() - min(waiting), 1) if waiting else 0.0


def describe(store: Store) -> str:
    """The queue of a node, running or not, as text."""
    lines = [f"The node {'runs' if store.in_use() else 'does not run'}; its folder is {store.folder}."]
    if not store.queue.is_file():
        return "\n".join([*lines, "No series has come yet."])
    queue = Queue(store.queue, read_only=True)
    try:
        lines.append(", ".join(f"{count} {state}" for state, count in queue.counts().items()) or "No series.")
        lines += [_line(each, queue.count_frames(each.id)) for each in queue.all_series()[-SHOWN:]]
    finally:
        queue.close()
    return "\n".join(lines)


def _line(series: QueuedSeries, slices: int) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(series.changed))
    start = f"{series.id}  {series.state:9}  {slices:5} slices  {when}  from {series.calling_ae}"
    return f"{start}  {series.reason}".rstrip()


def serve_health(port: int, health: Callable[[], Health]) -> ThreadingHTTPServer:
    """A page on loopback: JSON, with status 200 where all is well and 503 where it is not."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = health()
            body = json.dumps(asdict(found), indent=1).encode()
            self.send_response(200 if found.ok else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Monitors ask every few seconds: not worth a line."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
