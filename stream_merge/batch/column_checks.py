"""Checks the columns of a batch: refuses names that cannot be merged, and warns of what the options leave out."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession

from stream_merge.bridge.expressions import expression_sql
from stream_merge.bridge.transaction import Transaction
from stream_merge.clauses import Action, Clause, Expression
from stream_merge.column_names import RESERVED_PREFIX
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError, UnresolvedColumnError
from stream_merge.tombstones.manifest import DOMAIN, TombstoneManifest

logger: logging.Logger = logging.getLogger("stream_merge")

_UNORDERED = "the order of changes"
"""The entry of what was told; the others are sentences."""
_ALL = (Action.UPDATE_ALL, Action.INSERT_ALL)
_OF_RECORDS = ("topic", "partition", "offset", "value")
"""The columns in which a quarantine keeps the record that a row comes from."""


def check_columns(batch: DataFrame, config: SinkConfig) -> None:
    """Refuse a batch that lacks columns of the options, or has names that are reserved or differ by case only.

    Raises:
        ConfigError: A column has a reserved name, or two have names that differ in upper and lower case alone.
        UnresolvedColumnError: An option names a column that the batch does not have.
    """
    reserved = [name for name in batch.columns if name.lower().startswith(RESERVED_PREFIX)]
    if reserved:
        raise ConfigError(
            [f"the column name {name} begins with {RESERVED_PREFIX}, which is reserved" for name in reserved]
        )
    alike = _alike(batch.columns)
    if alike:
        raise ConfigError(
            [
                f"the source has the columns {' and '.join(names)}, which Delta does not tell apart: rename all but "
                "one of them in the source, or leave them out (with stream_merge.debezium by columns=, which takes "
                "names exactly)"
                for names in alike
            ]
        )
    present = {name.lower() for name in batch.columns}
    ignored = config.ignore_null_updates if not isinstance(config.ignore_null_updates, bool) else ()
    named = {
        "keys": config.keys,
        "columns": config.columns,
        "except_columns": config.except_columns,
        "ignore_null_updates": ignored,
    }
    missing = {
        option: absent
        for option, names in named.items()
        if (absent := [name for name in names if name.lower() not in present])
    }
    if missing:
        faults = " and ".join(f"{option} names {', '.join(absent)}" for option, absent in missing.items())
        raise UnresolvedColumnError(
            f"{config.target}: {faults}, and the source has no such column. Name some of those that it has: "
            f"{', '.join(batch.columns)}."
        )


def tell_left_out(
    spark: SparkSession,
    config: SinkConfig,
    clauses: Sequence[Clause],
    batch: Sequence[str],
    target: Collection[str],
    told: set[frozenset[str]],
) -> None:
    """Warn of columns of a batch that the target lacks and no option uses.

    Args:
        spark: The session.
        config: The sink as the user configured it.
        clauses: What it carries out.
        batch: The batch's columns.
        target: The target's.
        told: The sets of such columns that were looked at before, to which those of this batch are added.
    """
    # A sink that follows the source's columns takes them over, or stops at them.
    if config.merge_schema or config.follows_columns or not any(clause.action in _ALL for clause in clauses):
        return
    present = {name.lower() for name in target}
    missing = [name for name in config.written_columns(batch) if name.lower() not in present]
    if not missing or frozenset(missing) in told:
        return
    told.add(frozenset(missing))
    texts = [expression_sql(spark, expression) for expression in _expressions(config)]
    of_records = _OF_RECORDS if config.quarantine is not None else ()
    unused = [name for name in missing if name.lower() not in of_records and not _is_named(name, texts)]
    if unused:
        logger.warning(
            "%s: the table has no column %s, so its values are left out; set merge_schema, add it to the table, or "
            "name it in except_columns",
            config.target,
            ", ".join(unused),
        )


def tell_unordered(config: SinkConfig, transaction: Transaction, told: set[str]) -> None:
    """Warn of a table that keeps the order of changes, if the sink merges all changes as they arrive.

    Nobody is stopped: a correction, say, may be meant to count whatever its time.

    Args:
        config: The sink as the user configured it.
        transaction: The version that is read.
        told: What was looked at before, to which this is added.
    """
    if config.keeps_order or config.clauses or not config.keys or _UNORDERED in told:
        return
    told.add(_UNORDERED)
    state = transaction.domain_metadata(DOMAIN)
    if state is None:
        return
    logger.warning(
        "%s: the table was written with sequence_by (%s), and this sink has none: its changes overwrite newer rows and "
        "undo remembered deletes; set sequence_by again, or call reset_state if the order no longer counts",
        config.target,
        ", ".join(TombstoneManifest.from_json(state).sequence),
    )


def _alike(names: Sequence[str]) -> list[list[str]]:
    """Return the names that are the same but for upper and lower case."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.lower(), []).append(name)
    return [alike for alike in spellings.values() if len(alike) > 1]


def _expressions(config: SinkConfig) -> Iterator[Expression]:
    """Iterate over all expressions of a sink that may use a column of the source."""
    yield from (option for option in (config.on, config.before) if option is not None)
    yield from config.change_expressions
    yield from config.expect.values()
    for clause in config.clauses:
        if clause.condition is not None:
            yield clause.condition
        yield from clause.assignments.values()


def _is_named(name: str, texts: Sequence[str]) -> bool:
    """Return whether a text may name a column. In doubt it does: no warning is better than one of a column in use."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) for text in texts)
