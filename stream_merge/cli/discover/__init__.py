"""Writes a pipeline file from what a broker's topics have: samples them, tells what each one is, and groups them.

Only `sample` reads Kafka. The others are pure functions of the sampled records.
"""
