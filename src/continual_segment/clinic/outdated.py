"""Which files of an earlier run a new result of a case replaces.

In:  a case, the formats that are written of it now
Out: files of its folder that earlier runs wrote, by their paths in it; those that are not written again go

The old manifest lists them, or a list that a killed run left. The names in both come from a file, so nothing
outside the folder is touched, nor the scan, nor what the manifest of another case lists as well. Without a
manifest, only the names of the formats are known to be results.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from continual_segment.clinic.formats import FORMATS
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import FOLDER
from continual_segment.files.atomic import files_of_interrupted

ENDINGS = [format_.ending for format_ in FORMATS.values() if format_.ending]


def outdated_files(job: Job, formats: Collection[str]) -> set[Path]:
    """All files that earlier runs wrote for a case; a format without a file this time counts as well."""
    manifest = job.beside(Path(), FOLDER, ".json")
    names = [*_listed_in(job.folder / manifest), *files_of_interrupted(job.folder, manifest)]
    names += [job.file_name(FORMATS[name].ending) for name in formats if FORMATS[name].ending]
    files = {Path(name) for name in names if _is_result(job, name)}
    return files - _of_others(job, files)


def _listed_in(manifest: Path) -> list[str]:
    """The files that a manifest lists; none where it is damaged."""
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return [name for name in files if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_result(job: Job, name: str) -> bool:
    """Whether a name is that of a file in the folder of the results, and not of the scan."""
    path, parts = job.folder / name, Path(name).parts
    if not name.isprintable() or Path(name).anchor or ".." in parts or FOLDER in parts[:1]:
        return False
    try:
        inside = path.parent.resolve().is_relative_to(job.folder.resolve())  # a link may lead elsewhere
        return inside and path.is_file() and not (job.source.exists() and path.samefile(job.source))
    except OSError:
        return False


def _of_others(job: Job, files: Iterable[Path]) -> set[Path]:
    """The files that other cases have too: `-ot organs` of one scan names files after organs, not the case.

    Reading all manifests takes a while, so files in folders and of the case's own name are not looked up.
    """
    own = {f"{job.case}{ending}" for ending in ENDINGS}
    shared = {file for file in files if len(file.parts) == 1 and file.name not in own}
    if not shared:
        return set()
    manifest = job.beside(job.folder, FOLDER, ".json")
    others = (path for path in manifest.parent.glob("*.json") if path != manifest)
    return shared & {Path(name) for path in others for name in _listed_in(path)}
