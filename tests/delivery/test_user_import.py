"""Users from files: bad lines are reported by number, the rest are imported."""

from collections.abc import AsyncIterator

import pytest

from tests.delivery.services import ACME, Services
from tidings.delivery.people.user_import import BATCH_LINES, Form, ImportResult, _header
from tidings.domain.errors import Invalid
from tidings.domain.notifications.address import Device


async def run(services: Services, form: Form, text: str) -> list[ImportResult]:
    async def lines() -> AsyncIterator[str]:
        for line in text.splitlines(keepends=True):
            yield line

    return [report async for report in services.user_import.run(ACME, form, lines())]


async def test_import_of_csv(services: Services) -> None:
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
    [report] = await run(services, "csv", text)
    assert (report.created, report.replaced, report.bad) == (1, 1, 4)
    reported = {(bad.line, bad.field) for bad in report.bad_lines}
    assert {(4, "email"), (7, "line"), (8, "preferences.sms/news")} <= reported
    assert all(bad.reason for bad in report.bad_lines)


async def test_a_name_over_two_lines_is_refused_and_other_lines_are_imported(services: Services) -> None:
    [report] = await run(services, "csv", 'id,name,devices\nbob,"a\nb",\nkim,"K, im",fcm:' + "x" * 20 + "\n")
    assert [(bad.line, bad.field) for bad in report.bad_lines] == [(2, "name")]
    kim = await services.users.get(ACME, "kim")
    assert kim is not None
    assert (kim.user.name, kim.user.devices) == ("K, im", (Device("fcm", "x" * 20),))


@pytest.mark.slow
async def test_ndjson_in_batches(services: Services) -> None:
    count = BATCH_LINES * 2 + 7
    lines = [f'{{"id": "u{n:05}", "email": "u{n}@example.com"}}' for n in range(count)]
    lines[3] = "{nonsense"
    lines[700] = '{"email": "x@example.com"}'
    lines[701] = '{"id": "x", "fax": 1}'
    reports = await run(services, "ndjson", "\n".join(lines) + "\n\n")
    assert len(reports) == 3
    last = reports[-1]
    assert (last.lines, last.created, last.replaced, last.bad) == (count + 1, count - 3, 0, 3)
    reported = [(bad.line, bad.field) for report in reports for bad in report.bad_lines]
    assert reported == [(4, "body"), (701, "id"), (702, "fax")]
    again = await run(services, "ndjson", "\n".join(lines))
    assert (again[-1].created, again[-1].replaced) == (0, count - 3)


async def test_a_wrong_header_is_refused_as_a_whole(services: Services) -> None:
    for header in ("name,email\n", "id,fax\n", "id,id\n", "id,preferences\n"):
        with pytest.raises(Invalid):
            await run(services, "csv", header + "a,b\n")


async def test_a_header_with_semicolons_is_refused_with_the_separator() -> None:
    with pytest.raises(Invalid, match="separate the columns by commas"):
        _header(["id;name;email"])


async def test_preferences_have_the_same_form_in_csv_and_ndjson(services: Services) -> None:
    lines = (
        '{"id": "kim", "preferences": {"news": "no", "sms": true}}',
        '{"id": "max", "preferences": {"news": "perhaps"}}',
        '{"id": "tim", "preferences": {"news": 1}}',
        '{"id": "tom", "variables": {"plan": 1}}',
    )
    [report] = await run(services, "ndjson", "\n".join(lines))
    assert [(bad.line, bad.field) for bad in report.bad_lines] == [
        (2, "preferences.news"),
        (3, "preferences.news"),
        (4, "variables.plan"),
    ]
    kim = await services.users.get(ACME, "kim")
    assert kim is not None
    assert kim.user.preferences == {"news": False, "sms": True}


async def test_an_unclosed_quote_is_reported(services: Services) -> None:
    [report] = await run(services, "csv", 'id,name\nbob,Bob\nkim,"Kim\nmax,Max\n')
    assert (report.created, report.bad) == (1, 1)
    assert report.bad_lines[0].line == 3
