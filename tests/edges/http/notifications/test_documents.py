"""The documents of outcomes in columns are those of the same outcomes one by one."""

import pytest

from tidings.delivery.accept.request import AcceptedColumns, AcceptResult, AcceptResults
from tidings.edges.http.notifications.documents import accepted_document, encoded_columns
from tidings.wires.answers import encode

SHARED = (
    AcceptResult("", "scheduled", due=1_800_000_000_000_000, channels=("email", "sms")),
    AcceptResult("", "scheduled", due=5, zone="Europe/Berlin", batch='b"1', note="100 % due 5 s ago: sent now \u2713"),
    AcceptResult("", "unchanged", state="pending", reason="%d", first="n"),
)
IDS = ("n_1:ada", 'say "%s"\\:eve', "{}")
USERS = ("ada", "eve@example.com", "bob")


@pytest.mark.parametrize("shared", SHARED)
def test_documents_of_columns_are_those_of_their_results(shared: AcceptResult) -> None:
    columns = AcceptedColumns(shared, (2, 0, 1), IDS, USERS)
    results = [result for _, result in columns.results()]
    assert [(each.id, each.user, each.outcome) for each in results] == [
        (own_id, user, shared.outcome) for own_id, user in zip(IDS, USERS, strict=True)
    ]
    assert encoded_columns(columns) == [encode(accepted_document(each)) for each in results]
    lines = [encode(accepted_document(each, line)) for each, line in zip(results, (7, 8, 12), strict=True)]
    assert encoded_columns(columns, (7, 8, 12)) == lines


def test_results_are_in_the_order_of_the_recipients() -> None:
    alone = AcceptResult("n_1:zoe", "rejected", "zoe", reason="unknown", field="users")
    results = AcceptResults(4, [AcceptedColumns(SHARED[1], (3, 0, 1), IDS, USERS)])
    assert results.left == [2]
    results.alone[2] = alone
    assert not results.left
    assert [each.user for each in results] == ["eve@example.com", "bob", "zoe", "ada"]
    assert results[2] is alone
    assert len(results) == 4
    assert results.batch == 'b"1'
