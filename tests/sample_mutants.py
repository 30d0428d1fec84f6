"""Draws the mutants that a session of cosmic-ray tests: `python -m tests.sample_mutants SESSION NUMBER [SEED]`."""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing

PENDING = """
    SELECT module_path, start_pos_row, start_pos_col, operator_name, occurrence, job_id FROM mutation_specs
    WHERE job_id NOT IN (SELECT job_id FROM work_results) ORDER BY 1, 2, 3, 4, 5
"""


def sample(session: str, number: int, seed: int) -> list[str]:
    """Skip all mutants of a session but a sample, which the seed draws: a module first, and then a place in it.

    Args:
        session: The file that `cosmic-ray init` has written.
        number: How many mutants are left.
        seed: Draws the same mutants of the same code.

    Returns:
        Module and line of those that are left.
    """
    draw = random.Random(seed)
    with closing(sqlite3.connect(session)) as connection, connection:
        pending = connection.execute(PENDING).fetchall()
        modules: dict[str, dict[tuple[int, int], list[tuple[str, str]]]] = {}
        for module, row, column, *_, job in pending:
            modules.setdefault(module, {}).setdefault((row, column), []).append((f"{module}:{row}", job))
        drawn: dict[str, str] = {}
        while modules and len(drawn) < number:
            module = draw.choice(sorted(modules))
            place = draw.choice(sorted(modules[module]))
            name, job = draw.choice(modules[module].pop(place))
            drawn[job] = name
            if not modules[module]:
                del modules[module]
        skipped = [(job, "SKIPPED") for *_, job in pending if job not in drawn]
        connection.executemany("INSERT INTO work_results (job_id, worker_outcome) VALUES (?, ?)", skipped)
    return sorted(drawn.values())


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python -m tests.sample_mutants SESSION NUMBER [SEED]")
    for line in sample(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0):
        print(line)
