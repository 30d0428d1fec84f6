"""The Maven coordinate of Delta Lake for each supported pair."""

from importlib.metadata import version

import pytest

from stream_merge.packages import delta_package


@pytest.mark.parametrize(
    ("spark", "delta", "coordinate"),
    [
        ("4.0.1", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.0.1", "4.1.0", "io.delta:delta-spark_4.0_2.13:4.1.0"),
        ("4.1.4", "4.3.1", "io.delta:delta-spark_4.1_2.13:4.3.1"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
    ],
)
def test_the_coordinate_follows_spark_and_delta(spark, delta, coordinate):
    assert delta_package(spark, delta) == coordinate


@pytest.mark.core
def test_the_installed_pair_is_the_default():
    assert delta_package() == delta_package(version("pyspark"), version("delta-spark"))
