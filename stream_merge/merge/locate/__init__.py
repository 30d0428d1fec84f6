"""Finds the matching rows of each file: by a join with the candidate files (`scan`), or by the key index.

`pairs` collects the matches of a small batch on the driver. Part of the subpackage `merge`.
"""
