"""Completes a sink by the options that the rows of a micro-batch bring (`learn`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from stream_merge.batch.caches import SinkCaches
from stream_merge.bridge import sessions
from stream_merge.bridge.jvm import JVM_ERRORS, translate
from stream_merge.config import SinkConfig
from stream_merge.errors import ConfigError
from stream_merge.options import with_learnt
from stream_merge.tombstones.history import remembered_keys
from stream_merge.tombstones.manifest import check_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntSink:
    """A sink as the last micro-batch completed it.

    Attributes:
        config: The sink.
        caches: Its caches, which hold for these options alone.
        learnt: What was learnt, as text.
    """

    config: SinkConfig
    caches: SinkCaches
    learnt: str


def learnt_sink(config: SinkConfig, batch: DataFrame, last: LearntSink | None, caches: SinkCaches) -> LearntSink:
    """Return the sink that a micro-batch completes; the last one if that was completed in the same way.

    Args:
        config: The sink.
        batch: The micro-batch.
        last: What the micro-batch before has made of it, if there was one.
        caches: The caches of the sink before its first micro-batch.

    Raises:
        ConfigError: The options contradict each other, or nothing tells them.
        ConfigurationChangedError: The target was written with other keys.
    """
    try:
        options = learnt_options(config, batch)
        # As text: a Column cannot be compared.
        learnt = repr(sorted(options.items()))
        if last is not None and last.learnt == learnt:
            return last
        complete = with_learnt(config, options)
    except ConfigError as error:
        # Other faults of options show before there are rows, where the sink is made.
        raise ConfigError([f"{config.target}: {fault}" for fault in error.faults]) from error
    if complete.keeps_tombstones:
        # The store of tombstones checks this, too, but only after the target has got the columns that the sink needs.
        remembered = _remembered(batch, config)
        if remembered is not None:
            check_keys(config.target, remembered, complete.keys)
    caches = (caches if last is None else last.caches).for_other_options()
    return LearntSink(config=complete, caches=caches, learnt=learnt)


def completed(config: SinkConfig, batch: DataFrame) -> SinkConfig:
    """Return a sink as a micro-batch completes it, whatever its target remembers.

    Raises:
        ConfigError: The options contradict each other, or nothing tells them.
    """
    return config if config.learn is None else with_learnt(config, learnt_options(config, batch))


def learnt_options(config: SinkConfig, batch: DataFrame) -> Mapping[str, Any]:
    """Return the options that a micro-batch brings.

    Raises:
        ConfigError: The function of the sink returns something else.
    """
    assert config.learn is not None
    options: object = config.learn(batch, partial(_remembered, batch, config))
    if not isinstance(options, Mapping):
        raise ConfigError([f"learn returned a {type(options).__name__}; return a mapping of options of merge_sink"])
    return options


def _remembered(batch: DataFrame, config: SinkConfig) -> tuple[str, ...] | None:
    spark = sessions.classic_session(batch)
    with sessions.active(spark):
        try:
            return remembered_keys(spark, config.target)
        except JVM_ERRORS as error:
            raise translate(error) from error
