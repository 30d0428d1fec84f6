"""Which rows of which files match: by a join with the candidate files (`scan`), or by the index of keys.

`pairs` has the matches of a small batch on the driver. A part of the room `merge`.
"""
