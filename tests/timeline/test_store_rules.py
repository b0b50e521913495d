"""Rows are checked a batch at a time, and a wrong one among many is found."""

import pytest

from tidings.delivery.rows import delivery_put
from tidings.domain.notifications.delivery import Delivery
from tidings.domain.notifications.tables import TABLES, Value
from tidings.ports.tables import ChangeGroup, Put
from tidings.timeline.store_rules import check_groups

BIG = 1 << 63


def _rows(count: int) -> list[Put]:
    return [
        delivery_put("t", Delivery(f"n{number}/1", f"n{number}", 1, channel="webhook"), 0) for number in range(count)
    ]


def _with(put: Put, column: str, value: Value) -> Put:
    place = [each.name for each in TABLES["delivery"].columns].index(column)
    values = (*put.values[:place], value, *put.values[place + 1 :])
    return Put(put.key, put.body, put.expected, values, put.until)


def _check(puts: list[Put]) -> None:
    check_groups([ChangeGroup((put,)) for put in puts])


def test_valid_rows_pass() -> None:
    _check(_rows(50))


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("due", "soon", "of type int"),
        ("due", True, "of type int"),
        ("due", None, "may not be NULL"),
        ("due", BIG, "64 bits"),
        ("due", -BIG - 1, "64 bits"),
        ("state", 7, "of type str"),
        ("reason", "a\0b", "NUL"),
        ("reason", "\ud800", "surrogate"),
    ],
)
def test_one_wrong_value_among_many_rows_is_refused(column: str, value: Value, reason: str) -> None:
    rows = _rows(50)
    rows[31] = _with(rows[31], column, value)
    with pytest.raises(ValueError, match=reason):
        _check(rows)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_row_with_another_number_of_columns_is_refused(more: int) -> None:
    rows = _rows(50)
    put = rows[31]
    values = (*put.values, None)[: len(put.values) + more]
    rows[31] = Put(put.key, put.body, put.expected, values, put.until)
    with pytest.raises(ValueError, match="columns, not"):
        _check(rows)


def test_an_expiry_that_does_not_fit_is_refused() -> None:
    rows = _rows(50)
    put = rows[31]
    rows[31] = Put(put.key, put.body, put.expected, put.values, BIG)
    with pytest.raises(ValueError, match="expiry"):
        _check(rows)
