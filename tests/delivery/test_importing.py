"""Users from files: bad lines are told by number, the rest go on."""

from collections.abc import AsyncIterator

import pytest

from tests.delivery.office import ACME, Office
from tidings.delivery.importing import BATCH_LINES, Form, Imported, _header
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device


async def run(office: Office, form: Form, text: str) -> list[Imported]:
    async def lines() -> AsyncIterator[str]:
        for line in text.splitlines(keepends=True):
            yield line

    return [report async for report in office.importing.run(ACME, form, lines())]


async def test_csv(office: Office) -> None:
    text = (
        "\ufeffid,name,email,zone,quiet,preferences.sms/news,variables.plan,devices\r\n"
        'bob,"Bob, the\nBuilder",bob@example.com,Europe/Berlin,22:00-07:00,no,gold,fcm:' + "x" * 20 + "\r\n"
        "eve,Eve,not-an-address,,,,,\r\n"
        "\r\n"
        "ada,Ada,ada@example.org,,,,,\r\n"
        "few,fields\r\n"
        "max,Max,,,,maybe,,\r\n"
        "kim,Kim,,,,,,\r\n"
    )
    [report] = await run(office, "csv", text)
    assert (report.created, report.replaced, report.bad) == (1, 1, 4)
    told = {(bad.line, bad.field) for bad in report.bad_lines}
    assert {(4, "email"), (7, "line"), (8, "preferences.sms/news")} <= told
    assert all(bad.reason for bad in report.bad_lines)


async def test_a_name_over_two_lines_is_refused_and_plain_ones_are_taken(office: Office) -> None:
    [report] = await run(office, "csv", 'id,name,devices\nbob,"a\nb",\nkim,"K, im",fcm:' + "x" * 20 + "\n")
    assert [(bad.line, bad.field) for bad in report.bad_lines] == [(2, "name")]
    kim = await office.users.get(ACME, "kim")
    assert kim is not None
    assert (kim.user.name, kim.user.devices) == ("K, im", (Device("fcm", "x" * 20),))


@pytest.mark.slow
async def test_ndjson_in_batches(office: Office) -> None:
    count = BATCH_LINES * 2 + 7
    lines = [f'{{"id": "u{n:05}", "email": "u{n}@example.com"}}' for n in range(count)]
    lines[3] = "{nonsense"
    lines[700] = '{"email": "x@example.com"}'
    lines[701] = '{"id": "x", "fax": 1}'
    reports = await run(office, "ndjson", "\n".join(lines) + "\n\n")
    assert len(reports) == 3
    last = reports[-1]
    assert (last.lines, last.created, last.replaced, last.bad) == (count + 1, count - 3, 0, 3)
    told = [(bad.line, bad.field) for report in reports for bad in report.bad_lines]
    assert told == [(4, "body"), (701, "id"), (702, "fax")]
    again = await run(office, "ndjson", "\n".join(lines))
    assert (again[-1].created, again[-1].replaced) == (0, count - 3)


async def test_a_wrong_header_is_refused_as_a_whole(office: Office) -> None:
    for header in ("name,email\n", "id,fax\n", "id,id\n", "id,preferences\n"):
        with pytest.raises(Invalid):
            await run(office, "csv", header + "a,b\n")


async def test_a_header_with_semicolons_is_told_what_separates() -> None:
    with pytest.raises(Invalid, match="separate the columns by commas"):
        _header(["id;name;email"])


async def test_wishes_are_written_alike_in_both_forms_and_told_by_name(office: Office) -> None:
    lines = (
        '{"id": "kim", "preferences": {"news": "no", "sms": true}}',
        '{"id": "max", "preferences": {"news": "perhaps"}}',
        '{"id": "tim", "preferences": {"news": 1}}',
        '{"id": "tom", "variables": {"plan": 1}}',
    )
    [report] = await run(office, "ndjson", "\n".join(lines))
    assert [(bad.line, bad.field) for bad in report.bad_lines] == [
        (2, "preferences.news"),
        (3, "preferences.news"),
        (4, "variables.plan"),
    ]
    kim = await office.users.get(ACME, "kim")
    assert kim is not None
    assert kim.user.preferences == {"news": False, "sms": True}


async def test_a_quote_that_is_never_closed_is_told(office: Office) -> None:
    [report] = await run(office, "csv", 'id,name\nbob,Bob\nkim,"Kim\nmax,Max\n')
    assert (report.created, report.bad) == (1, 1)
    assert report.bad_lines[0].line == 3
