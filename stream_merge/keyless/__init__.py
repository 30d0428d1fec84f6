"""Tables without a key: a multiset of rows, each with an id of its sequence and its contents.

May import `tombstones` and the rooms below it.
"""
