"""view: open scans, label maps and models in a browser."""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.segment import segment
from continual_segment.errors import ConfigError
from continual_segment.model import Model
from continual_segment.model.starter import model_folder
from continual_segment.viewer.cases import ViewCase, find_cases, is_results
from continual_segment.viewer.server import ViewerServer
from continual_segment.viewer.site import make_site

log = logging.getLogger(__name__)


def view(
    paths: Sequence[str | Path] = (),
    model: str | Path | None = None,
    port: int = 0,
    browser: bool = True,
) -> None:
    """Show scans with label maps on a local page until Ctrl-C.

    paths: a scan or a folder of scans, then any number of label maps or folders of these; or a folder of
        results of `segment` alone.
    model: a model folder. Its packs get a page of their own, and scans without label maps are segmented.
    port: of the address; 0 takes any free one.
    browser: whether to open one.

    The address is printed.
    """
    stop_when_asked_to_end()
    with tempfile.TemporaryDirectory(prefix="conseg-view-") as folder:
        shown_model = None if model is None else model_folder(model)
        server = open_server([Path(path) for path in paths], shown_model, Path(folder), port)
        try:
            print(f"Viewer: {server.address} (Ctrl-C stops it)", flush=True)
            if browser:
                open_browser(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nViewer stopped.", flush=True)
        finally:
            server.server_close()


def stop_when_asked_to_end() -> None:
    """As on Ctrl-C where a process ends or its terminal is closed: no scan stays in a temporary folder."""
    if threading.current_thread() is threading.main_thread():  # others cannot handle signals
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):  # Windows lacks SIGHUP
                signal.signal(getattr(signal, name), signal.default_int_handler)


def open_browser(address: str) -> None:
    """Open a browser; one in the terminal cannot draw, and waits for a server that is not running."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        return
    if type(found) is not webbrowser.GenericBrowser:  # the class of lynx, w3m and others in a terminal
        found.open(address)


def open_server(paths: Sequence[Path], model: Path | None, folder: Path, port: int = 0) -> ViewerServer:
    """The server, ready to serve; `folder` is for its own files."""
    if not paths and model is None:
        raise ConfigError("Name a scan, a folder of results, or a model with --model.")
    if model is not None:
        Model.open(model)  # first: a wrong path costs no waiting
    cases = find_shown(paths, model, folder / "segmented") if paths else []
    return ViewerServer(make_site(cases, model, folder), port)


def find_shown(paths: Sequence[Path], model: Path | None, output: Path) -> list[ViewCase]:
    """The cases of the paths; scans without label maps are segmented into `output` where a model is given."""
    cases = find_cases(paths)
    if model is None or len(paths) > 1 or is_results(paths[0]) or any(case.labels for case in cases):
        return cases
    failures = segment(paths[0], model, output, outputs=OutputConfig(explain=True))
    for title, sentence in failures.items():
        log.warning("%s: %s", title, sentence)
    return find_cases([paths[0], output])
