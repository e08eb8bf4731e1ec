"""All that a page can request: its own files, the list of cases, what belongs to each case, the model.

Cases are prepared when they are first shown. The files of the last few stay in a temporary folder.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from shutil import rmtree
from threading import Lock
from typing import Any

from continual_segment import __version__
from continual_segment.names import printable
from continual_segment.viewer.bounds import MOST_VOXELS, MOST_WITHOUT_GRAPHICS
from continual_segment.viewer.cases import ViewCase
from continual_segment.viewer.comparison import compare
from continual_segment.viewer.model_data import model_data, training_volumes, verification_data
from continual_segment.viewer.prepared_view import PreparedView, Trained, file_names, prepare_view
from continual_segment.viewer.server import Resource, Site, json_resource

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".txt": "text/plain",
}
VOXELS = "application/octet-stream"
MOST_CASES_KEPT = 3


class CaseStore:
    """Prepares cases, one at a time, and keeps the last few."""

    def __init__(self, folder: Path, most_voxels: int = MOST_VOXELS, trained: Trained | None = None) -> None:
        """`folder` is for the viewer's own files; `trained` adds flags of volumes."""
        self.folder, self.most_voxels, self.trained = folder, most_voxels, trained
        self._kept: OrderedDict[str, PreparedView] = OrderedDict()
        self._lock = Lock()

    def data(self, key: str, case: ViewCase) -> dict[str, Any]:
        """The description of a case."""
        with self._lock:
            return self._prepared(key, case).data

    def file(self, key: str, case: ViewCase, name: str) -> bytes:
        """One of its files; empty where the case has none of that kind."""
        with self._lock:
            path = self._prepared(key, case).files.get(name)
            return path.read_bytes() if path else b""

    def comparison(self, case: ViewCase, reference: int, other: int) -> dict[str, Any]:
        """Two label maps against each other; not while a case is prepared, as both need memory."""
        with self._lock:
            return compare(case, reference, other)

    def _prepared(self, key: str, case: ViewCase) -> PreparedView:
        if key not in self._kept:
            self._kept[key] = prepare_view(case, self.folder / key, self.most_voxels, self.trained)
            while len(self._kept) > MOST_CASES_KEPT:
                oldest, _ = self._kept.popitem(last=False)
                rmtree(self.folder / oldest)
        self._kept.move_to_end(key)
        return self._kept[key]


def make_site(cases: Sequence[ViewCase], model: Path | None, folder: Path) -> Site:
    """The table of everything that can be requested; `folder` is for the viewer's own files.

    Every case is there twice: as fine as a browser can hold, and for one that draws without a graphics card.
    """
    trained = training_volumes(model) if model else None
    stores = {
        "cases": CaseStore(folder / "cases", MOST_VOXELS, trained),
        "coarse": CaseStore(folder / "coarse", MOST_WITHOUT_GRAPHICS, trained),
    }
    table = _static_files()
    table[""] = table["index.html" if cases else "model.html"]
    overview = {
        "version": __version__,
        "cases": [_overview(case) for case in cases],
        "has_model": model is not None,
    }
    table["cases.json"] = json_resource(lambda: overview)
    for number, case in enumerate(cases):
        for route, store in stores.items():
            table |= _case_resources(f"{route}/{number}", str(number), case, store)
    if model is not None:
        table["model.json"] = json_resource(partial(model_data, model))
        table["verify.json"] = json_resource(cache(partial(verification_data, model)))
    return Site(table)


def _static_files() -> dict[str, Resource]:
    """The page's own files, by name."""
    folder = resources.files("continual_segment.viewer") / "static"
    return {
        file.name: Resource(MEDIA_TYPES[Path(file.name).suffix], file.read_bytes)
        for file in folder.iterdir()
        if Path(file.name).suffix in MEDIA_TYPES
    }


def _overview(case: ViewCase) -> dict[str, Any]:
    return {
        "name": printable(case.name),
        "status": case.status,
        "note": printable(case.notes[0], 600) if case.notes else "",
    }


def _case_resources(route: str, key: str, case: ViewCase, store: CaseStore) -> dict[str, Resource]:
    table = {f"{route}/case.json": json_resource(partial(store.data, key, case))}
    for name in file_names(case):
        table[f"{route}/{name}"] = Resource(VOXELS, partial(store.file, key, case, name))
    count = len(case.labels)
    for one in range(count):
        for other in set(range(count)) - {one}:
            make = partial(store.comparison, case, one, other)
            table[f"{route}/compare/{one}-{other}.json"] = json_resource(cache(make))
    return table
