"""Segmentation: a scan and a model in, a label map on the scan's own grid out."""

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.segmenter import Segmentation, Segmenter
from continual_segment.segmentation.several_models import MultiSegmenter, open_segmenter

__all__ = ["MultiSegmenter", "ScanContext", "SegmentConfig", "Segmentation", "Segmenter", "open_segmenter"]
