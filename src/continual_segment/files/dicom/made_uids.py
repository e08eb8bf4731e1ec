"""UIDs of what is written: the same for the same content, another for any other.

A result that is computed or sent twice, after a crash or by two machines, is then one object to an archive,
and a result of other slices, labels or versions never takes the place of an earlier one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from pydicom.uid import generate_uid

from continual_segment.files.dicom.headers import text
from continual_segment.files.dicom.series import Series


def digest_of(series: Series, content: Iterable[str | bytes]) -> str:
    """Hash of the slices that a result refers to and of what it holds."""
    digest = hashlib.sha256()
    for part in (*(text(frame.header, "SOPInstanceUID") for frame in series.frames), *content):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)  # so that parts cannot run into each other
    return digest.hexdigest()


def made_uid(digest: str, part: str) -> str:
    """The UID of a part, such as series or instance, of the content with this hash."""
    return str(generate_uid(entropy_srcs=[digest, part]))
