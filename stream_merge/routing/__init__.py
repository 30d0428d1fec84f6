"""Merges one stream into many tables: finds the sink of each source and merges a micro-batch into all tables.

May import `sink` and everything that the sink may import.
"""
