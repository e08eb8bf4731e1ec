"""Segmentation: a scan and a model in, a label map on the scan's own grid out."""

from continual_segment.segmentation.segment import SegmentConfig, Segmenter

__all__ = ["SegmentConfig", "Segmenter"]
