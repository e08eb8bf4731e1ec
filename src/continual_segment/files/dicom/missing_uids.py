"""Patient, study and frame of reference of the source are kept, whatever else its headers lack.

Anonymisers and old scanners leave out single UIDs. A missing one is made from what there is, the same every
time, so that results written twice belong together; it never replaces one that is there.
"""

from __future__ import annotations

from dataclasses import replace

from pydicom import Dataset
from pydicom.uid import generate_uid

from continual_segment.files.dicom.frames import Frame
from continual_segment.files.dicom.headers import text
from continual_segment.files.dicom.identity import ALWAYS, IF_ANY, sound_text
from continual_segment.files.dicom.series import Series

KEPT = [*ALWAYS, *IF_ANY, "StudyInstanceUID", "FrameOfReferenceUID", "PositionReferenceIndicator"]
"""What a copy of the slices has in common with them."""


def with_frame_of_reference(series: Series) -> Series:
    """The series with a FrameOfReferenceUID in every header: that of the other slices, or one made."""
    known = {uid for frame in series.frames if (uid := text(frame.header, "FrameOfReferenceUID"))}
    if known and all(text(frame.header, "FrameOfReferenceUID") for frame in series.frames):
        return series
    sources = [series.uid, *(text(frame.header, "SOPInstanceUID") for frame in series.frames), "frame"]
    uid = known.pop() if len(known) == 1 else generate_uid(entropy_srcs=sources)
    headers = {id(frame.header): _with_frame_uid(frame, uid) for frame in series.frames}
    return replace(
        series, frames=tuple(replace(frame, header=headers[id(frame.header)]) for frame in series.frames)
    )


def _with_frame_uid(frame: Frame, uid: str) -> Dataset:
    header = Dataset()
    header.update(frame.header)  # Dataset.copy() would share its elements with the original
    if not text(header, "FrameOfReferenceUID"):
        header.FrameOfReferenceUID = uid
    return header


def keep_identity(header: Dataset, source: Dataset) -> None:
    """Copy patient, study and frame of reference, as far as the source has them, into a made header."""
    if text(source, "PatientID") or text(source, "PatientName"):  # then neither is to be that of the case
        header.PatientID = header.PatientName = ""
    for keyword in KEPT:
        if value := sound_text(source, keyword):
            setattr(header, keyword, value)
