"""Benchmarks: one script for each question, on the workloads of `workloads.py`."""
