"""DICOM in and out: series of CT slices, segmentations and contours."""

import logging
import warnings

# pydicom logs tracebacks of its decoders and warns of every odd value; our errors report what matters
logging.getLogger("highdicom").setLevel(logging.WARNING)
logging.getLogger("pydicom").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore", module=r"pydicom\.")
