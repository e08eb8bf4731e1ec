"""Clinic: scans as hospitals have them in, results as they need them out."""

from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.segment import segment

__all__ = ["OutputConfig", "segment"]
