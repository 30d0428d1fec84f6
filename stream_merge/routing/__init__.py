"""One stream into many tables: which sink takes the rows of which source, and one micro-batch of all of them.

May import `sink` and all that the sink may import.
"""
