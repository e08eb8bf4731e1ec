"""DICOM in and out: series of CT slices, segmentations and contours."""
