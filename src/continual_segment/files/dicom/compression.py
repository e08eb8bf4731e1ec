"""Which ways of compressing pixels are read.

Raw, deflated, RLE, JPEG (lossless, and lossy of 8 or 12 bits), JPEG-LS and JPEG 2000 are; newer or rarer ones
are refused by name. Lossy compression is reported: it blurs edges of organs.
"""

from __future__ import annotations

from pydicom import Dataset
from pydicom.pixels import get_decoder
from pydicom.uid import UID, AllTransferSyntaxes, JPEGBaseline8Bit, JPEGExtended12Bit, JPEGLosslessSV1

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import number, text

ALWAYS_LOSSY = (JPEGBaseline8Bit, JPEGExtended12Bit)
"""The others may be either, as the header states."""


def compression_of(header: Dataset) -> UID | None:
    """The transfer syntax; None where the file does not name it."""
    return getattr(getattr(header, "file_meta", None), "TransferSyntaxUID", None)


def check_compression(name: str, data: Dataset) -> None:
    """Raise where no decoder is at hand; mark pixels for the one that there is."""
    syntax = compression_of(data)
    if syntax is None or not syntax.is_compressed or syntax.is_deflated:
        return
    if not _can_decode(syntax):
        raise ScanError(
            f"{name}: the pixels are compressed as {syntax.name}, which is not read. Export the series "
            "uncompressed, or as JPEG 2000 or JPEG-LS."
        )
    if syntax == JPEGExtended12Bit and number(data, "BitsStored", 8) > 8:
        # gdcm reads the JPEG's own header, so 12 bits; pydicom calls it only under another name
        data.file_meta.TransferSyntaxUID = JPEGLosslessSV1


def readable_syntaxes() -> list[UID]:
    """Every transfer syntax whose pixels are read on this machine."""
    return [
        each
        for each in AllTransferSyntaxes
        if not each.is_compressed or each.is_deflated or _can_decode(each)
    ]


def _can_decode(syntax: UID) -> bool:
    try:
        return bool(get_decoder(syntax).is_available)
    except NotImplementedError:
        return False


def loss(header: Dataset) -> tuple[str, ...]:
    """A sentence where pixels are not quite those of the scanner."""
    if text(header, "LossyImageCompression") != "01" and compression_of(header) not in ALWAYS_LOSSY:
        return ()
    return ("The slices were compressed with loss; fine detail is gone.",)
