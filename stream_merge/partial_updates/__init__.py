"""Changes that set some columns of a row: a last-writer-wins register for each column (`registers`), and their fold.

Also rows that get another key (`key_changes`) and the values that follow them (`key_change_values`). May import `order`,
`merge`, `table` and `bridge`.
"""
