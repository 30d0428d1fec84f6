"""Reads the pipeline file: its models, its values from the environment, and every fault with its line.

Knows nothing of Spark. May import `cli.errors`.
"""
