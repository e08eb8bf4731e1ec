"""dataset.json of an exported pack.

The pack that came with the model gets its file back as it was. Any other pack gets one with its own organs;
the encoder's weights in the exported checkpoint still have the licence of the data they were trained on, so
that is named beside the pack's.

In:  an OrganPack, dataset.json of the imported model
Out: dataset.json
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.model.model import RESTORE
from continual_segment.model.nnunet.dataset import Attribution, Dataset, read_labels
from continual_segment.model.pack import OrganPack

KEPT = ("channel_names", "modality", "file_ending", "overwrite_image_reader_writer")
"""How scans are read, whatever the organs."""
UNKNOWN = "not stated"


def dataset_json(pack: OrganPack, imported: dict[str, Any], where: str) -> dict[str, Any]:
    """What nnU-Net needs to know about the organs; `imported` is the file of the imported model."""
    dataset = as_record(imported, Dataset, where, ModelError, RESTORE)
    labels = read_labels(dataset, where)
    same_organs = (labels.organs, labels.has_regions) == (pack.organs, pack.regions)
    if same_organs and dataset.attribution.licence == pack.licence:
        return imported
    if pack.regions:
        raise ModelError(
            f"Pack '{pack.name}' has regions that {where} does not describe. Export it from the model it was "
            "imported into."
        )
    return _of_other_organs(pack, imported, dataset.attribution)


def _of_other_organs(pack: OrganPack, imported: dict[str, Any], encoder: Attribution) -> dict[str, Any]:
    kept = {key: imported[key] for key in KEPT if key in imported}
    cases = pack.card.get("cases")
    return {
        "name": pack.name,
        "labels": {"background": 0} | {organ.name: label for label, organ in enumerate(pack.organs, 1)},
        "licence": f"{pack.licence or UNKNOWN}; weights of the encoder: {encoder.licence or UNKNOWN}",
        "encoder": {name: text for name, text in asdict(encoder).items() if text},
        "numTraining": cases.get("train", 0) if isinstance(cases, dict) else 0,
        "file_ending": ".nii.gz",
    } | kept
