"""Benchmark: every method in one harness, every table of the paper."""

from continual_segment.lab.benchmark.plan import Plan, make_orders
from continual_segment.lab.benchmark.run import run_benchmark

__all__ = ["Plan", "make_orders", "run_benchmark"]
