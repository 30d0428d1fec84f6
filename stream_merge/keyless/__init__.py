"""Merges tables without a key as multisets of rows; each row has an id made from its sequence and its contents.

May import `tombstones` and the subpackages below it.
"""
