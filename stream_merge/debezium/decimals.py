"""Decodes decimals: base64 of the unscaled integer, the same with its own scale, or text."""

from __future__ import annotations

from pyspark.sql import types as T

from stream_merge.debezium.fields import PLAIN, Field
from stream_merge.debezium.spelling import lambda_name, let

_BASE = 1_000_000_000
_MAX_DIGITS = 38


def decimal_text(raw: str, field: Field, *, decimals: str) -> str:
    """Return SQL for the number as plain text; NULL if the value is not a number.

    Args:
        raw: SQL for the value's text.
        field: The column.
        decimals: The connector's `decimal.handling.mode`, for columns without a known semantic type.
    """
    if field.kind == "VariableScaleDecimal":
        return _variable(raw)
    if field.kind == PLAIN or (field.kind != "Decimal" and decimals != "precise"):
        # Debezium writes NAN in string mode, NaN and Infinity in double mode.
        return f"CASE upper({raw}) WHEN 'NAN' THEN 'NaN' ELSE {raw} END"
    data_type = field.data_type
    scale = field.scale
    if scale is None:
        scale = data_type.scale if isinstance(data_type, T.DecimalType) else 0
    precise = _plain(_unscaled(raw), str(scale))
    return (
        precise if field.kind == "Decimal" else f"CASE WHEN {raw} LIKE '{{%' THEN {_variable(raw)} ELSE {precise} END"
    )


def decimal(raw: str, field: Field, data_type: T.DecimalType, *, decimals: str) -> str:
    """Return SQL for the value as DECIMAL; NULL if it has more digits than the type, before or after the point."""
    cast = data_type.simpleString()

    def fitting(number: str) -> str:
        # A cast would round. The widest type also keeps all digits of a number with an exponent.
        wide = f"DECIMAL({_MAX_DIGITS}, {_MAX_DIGITS - data_type.precision + data_type.scale})"
        fraction = f"length(regexp_extract({number}, '[.]([0-9]*?)0*$', 1))"
        return (
            f"CASE WHEN contains(upper({number}), 'E') "
            f"THEN IF(try_cast({number} AS {wide}) = try_cast({number} AS {cast}), try_cast({number} AS {cast}), NULL) "
            f"WHEN {fraction} <= {data_type.scale} THEN try_cast({number} AS {cast}) END"
        )

    is_text = field.kind in ("VariableScaleDecimal", PLAIN)
    is_precise = field.kind == "Decimal" or (not is_text and decimals == "precise")
    if not is_precise or field.scale not in (None, data_type.scale):
        return let(decimal_text(raw, field, decimals=decimals), fitting)
    # It has no more digits after the point than the type.
    number = f"try_cast(concat({_unscaled(raw)}, 'E-{data_type.scale}') AS {cast})"
    if field.kind == "Decimal":
        return number
    return f"CASE WHEN {raw} LIKE '{{%' THEN {let(_variable(raw), fitting)} ELSE {number} END"


def plain_text(number: str) -> str:
    """Return SQL for a number's text without an exponent; Java writes 0.00000001 as 1E-8."""

    def unfold(raw: str) -> str:
        mantissa = f"regexp_extract({raw}, '^[^eE]*', 0)"
        fraction = f"length(regexp_extract({mantissa}, '[.]([0-9]*)$', 1))"
        exponent = f"try_cast(regexp_extract({raw}, '[eE]([+-]?[0-9]+)$', 1) AS INT)"
        plain = let(f"{fraction} - {exponent}", lambda scale: _plain(f"replace({mantissa}, '.', '')", scale))
        return f"CASE WHEN {raw} RLIKE '[eE]' THEN {plain} ELSE {raw} END"

    return let(number, unfold)


def _variable(raw: str) -> str:
    return let(
        f"from_json({raw}, 'scale INT, value STRING')",
        lambda struct: _plain(_unscaled(f"{struct}.value"), f"{struct}.scale"),
    )


def _plain(unscaled: str, scale: str) -> str:
    """Return SQL for an integer's text with the decimal point inserted."""

    def point(number: str) -> str:
        sign = f"IF({number} LIKE '-%', '-', '')"
        unsigned = f"trim(LEADING '-' FROM {number})"
        digits = f"lpad({unsigned}, greatest(length({unsigned}), {scale} + 1), '0')"
        whole = f"IF({number} = '0', '0', concat({number}, repeat('0', -({scale}))))"
        fraction = f"concat({sign}, left({digits}, length({digits}) - {scale}), '.', right({digits}, {scale}))"
        return f"CASE WHEN {scale} > 0 THEN {fraction} WHEN {scale} <= 0 THEN {whole} END"

    return unscaled if scale == "0" else let(unscaled, point)


def _unscaled(base64: str) -> str:
    """Return SQL for the text of a signed big-endian integer in base64, of any length."""

    def number(digits: str) -> str:
        sign = f"IF({digits} >= '8', 'F', '0')"
        wide = f"lpad({digits}, 32, {sign})"
        high = f"CAST(conv(left({wide}, 16), 16, -10) AS DECIMAL(20))"
        low = f"CAST(conv(right({wide}, 16), 16, 10) AS DECIMAL(20))"
        # 31 hexadecimal digits have at most 38 decimal digits.
        return (
            f"CASE WHEN {digits} = '' THEN NULL "
            f"WHEN length({digits}) <= 16 THEN conv(lpad({digits}, 16, {sign}), 16, -10) "
            f"WHEN length({digits}) <= 30 "
            f"THEN CAST(CAST({high} * 18446744073709551616BD + {low} AS DECIMAL(38)) AS STRING) "
            f"ELSE {_long_unscaled(digits)} END"
        )

    return let(f"hex(try_to_binary({base64}, 'base64'))", number)


def _long_unscaled(digits: str) -> str:
    """Return SQL for the text of an integer that is too large for Spark's numeric types.

    It processes the bytes, the most significant first, into an array of limbs of nine decimal digits, the least
    significant first. A negative integer is the negation of its complement, minus one.
    """
    limbs, byte, position = lambda_name(), lambda_name(), lambda_name()
    start = f"substring({digits}, 2 * {position} + 1, 2)"
    value = f"CAST(conv({start}, 16, 10) AS BIGINT)"
    is_negative = f"({digits} >= '8')"
    bytes_ = (
        f"transform(sequence(0, length({digits}) DIV 2 - 1), {position} -> IF({is_negative}, 255L - {value}, {value}))"
    )
    magnitude = f"aggregate({bytes_}, array(0L), ({limbs}, {byte}) -> {_multiply_add(limbs, '256', byte)})"
    total = let(magnitude, lambda number: f"IF({is_negative}, {_multiply_add(number, '1', '1L')}, {number})")
    limb = lambda_name()
    padded = f"array_join(reverse(transform({total}, {limb} -> lpad(CAST({limb} AS STRING), 9, '0'))), '')"
    return let(padded, lambda joined: f"concat(IF({is_negative}, '-', ''), trim(LEADING '0' FROM {joined}))")


def _multiply_add(limbs: str, factor: str, summand: str) -> str:
    """Return SQL for the limbs of number * factor + summand."""
    state, limb = lambda_name(), lambda_name()
    start = f"named_struct('out', CAST(array() AS ARRAY<BIGINT>), 'carry', CAST({summand} AS BIGINT))"
    step = let(
        f"{limb} * {factor} + {state}.carry",
        lambda total: (
            f"named_struct('out', concat({state}.out, array({total} % {_BASE})), 'carry', {total} DIV {_BASE})"
        ),
    )
    finish = lambda_name()
    return (
        f"aggregate({limbs}, {start}, ({state}, {limb}) -> {step}, "
        f"{finish} -> IF({finish}.carry > 0, concat({finish}.out, array({finish}.carry)), {finish}.out))"
    )
