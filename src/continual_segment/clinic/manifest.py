"""The manifest: how a result was made, without the patient's identity.

It holds versions, fingerprints of encoder and packs, settings, times, what was found in the scan, what was
changed in it, and a hash of its voxels; no path, name, date or UID of the patient. A batch reads it to find
the cases that are done: same request, same input files, all results still there.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continual_segment import __version__
from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.sanity import Sanity
from continual_segment.files import Source
from continual_segment.files.dicom.listing import for_manifest
from continual_segment.model.fingerprint import fingerprint_data
from continual_segment.model.pieces import OrganPieces
from continual_segment.segmentation import MultiSegmenter, Segmenter
from continual_segment.segmentation.merge import READ_FAMILIARITY
from continual_segment.segmentation.predictions import PackProfile

FOLDER = "manifest"
NOT_THE_RESULT = ("progress", "device", "backend")
"""Settings that change a result by rounding alone, if at all: a batch may be resumed with others. Networks in
int8 are in the request."""


def request_of(
    segmenter: Segmenter | MultiSegmenter, outputs: dict[str, Any], regressor: BodyPartRegressor | None = None
) -> dict[str, Any]:
    """All that decides what a scan becomes; `regressor` is the one in place of the models' own."""
    settings = {name: value for name, value in asdict(segmenter.config).items() if name not in NOT_THE_RESULT}
    if isinstance(segmenter, MultiSegmenter):
        each = {name: model_request(one, regressor) for name, one in segmenter.segmenters.items()}
        models = {"models": each, "organs": [organ.name for organ in segmenter.organs]}
    else:
        models = model_request(segmenter, regressor)
    request = {"version": __version__, "settings": settings, "outputs": outputs} | models
    return json.loads(json.dumps(request))  # lists for tuples: equal to what is read back


def model_request(segmenter: Segmenter, regressor: BodyPartRegressor | None) -> dict[str, Any]:
    """What a result depends on in one model."""
    regressor = regressor or segmenter.regressor
    found = {
        "encoder": segmenter.encoder_fingerprint,
        "packs": {pack.profile.name: pack.profile.fingerprint for pack in segmenter.packs},
        "anomaly_heads": {head.profile.name: head.profile.fingerprint for head in segmenter.heads},
        "body_parts": regressor.fingerprint if regressor else None,
        "pieces": fingerprint_of(segmenter.pieces_of_pack),
        "assessments": fingerprint_of_assessments(segmenter),
        "trained_on": fingerprint_data([trained_on(pack.profile) for pack in segmenter.packs]),
        "organs": [organ.name for organ in segmenter.organs],
    }
    return found | ({"int8": segmenter.engine.quantised} if segmenter.engine.quantised else {})


def trained_on(profile: PackProfile) -> list[Any]:
    """What merging asks of a pack's training scans, which is no part of a pack's fingerprint."""
    return [profile.name, dict(profile.coverage), dict(profile.distribution), profile.anomaly_aware]


def fingerprint_of(pieces: Mapping[str, Mapping[str, OrganPieces]]) -> str | None:
    """Of what packs know of the pieces of their organs, which is no part of a pack's fingerprint."""
    known = {
        pack: {organ: asdict(each) for organ, each in found.items()}
        for pack, found in pieces.items()
        if found
    }
    return fingerprint_data(known) if known else None


def fingerprint_of_assessments(segmenter: Segmenter) -> str | None:
    """Of what packs know of themselves, which is no part of a pack's fingerprint; None where no rule asks."""
    profiles = [pack.profile for pack in segmenter.packs]
    known = {
        profile.name: [dict(profile.dice), dict(profile.temperature), asdict(profile.domain)]
        for profile in profiles
        if profile.domain
    }
    return fingerprint_data(known) if known and segmenter.rule in READ_FAMILIARITY else None


def how_computed(segmenter: Segmenter | MultiSegmenter) -> dict[str, str]:
    """What the manifest records of the settings that are not part of the request.

    The backend is the one that ran, also where another was requested.
    """
    each = segmenter.segmenters.values() if isinstance(segmenter, MultiSegmenter) else [segmenter]
    backends = sorted({one.engine.backend for one in each})
    return {"device": segmenter.config.device, "backend": ", ".join(backends)}


def manifest_of(
    request: dict[str, Any], job: Job, source: Source, sanity: Sanity, seconds: dict[str, float]
) -> dict[str, Any]:
    return {
        "request": request,
        "machine": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "system": platform.system(),
            "processor": platform.machine(),
        },
        "input": {
            "files": input_files(job.source),
            "sha256_of_voxels": hash_of(source),
            "series": for_manifest(source.series) if source.series else None,
            "facts": sanity.facts,
            "changed": list(source.notes),
            "problems": list(sanity.problems),
            "warnings": list(sanity.warnings),
        },
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def hash_of(source: Source) -> str:
    """Of voxels and grid: the same scan has the same one, whatever its name."""
    digest = hashlib.sha256(np.ascontiguousarray(source.volume.voxels).data)
    digest.update(np.round(source.volume.grid.affine, 4).tobytes())
    return digest.hexdigest()


def input_files(path: Path) -> dict[str, int]:
    """What changes when a file does, without reading it."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    stats = [each.stat() for each in files]
    newest = max((each.st_mtime_ns for each in stats), default=0)
    return {"count": len(files), "bytes": sum(each.st_size for each in stats), "newest_ns": newest}


def is_done(job: Job, request: dict[str, Any]) -> bool:
    """Whether a case's results are there and would become the same again, but for rounding."""
    made_of = up_to_date(job, request)
    try:
        return made_of is not None and made_of == input_files(job.source)
    except OSError:
        return False  # reading the case raises it again, and fails this case alone


def up_to_date(job: Job, request: dict[str, Any]) -> dict[str, Any] | None:
    """The input files that a case's results were made of; None where they are not all there or others were
    requested."""
    try:
        manifest = json.loads(job.beside(job.folder, FOLDER, ".json").read_text(encoding="utf-8"))
        there = all((job.folder / name).is_file() for name in manifest["files"])
        return dict(manifest["input"]["files"]) if manifest["request"] == request and there else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
