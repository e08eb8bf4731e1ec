"""Segmentation: a scan and a model in, a label map on the scan's own grid out."""

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.segmenter import Segmentation, Segmenter

__all__ = ["ScanContext", "SegmentConfig", "Segmentation", "Segmenter"]
