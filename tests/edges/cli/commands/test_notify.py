"""`notify`, `notifications` and `deliveries`: from the command to the message in a file."""

import json
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli, RunningNode


@pytest.fixture
def ada(cli: Cli) -> str:
    """A user of this test alone, with a template of its own."""
    cli("users", "put", cli.topic, "--email", "ada@example.com", "--phone", "+15550100", "--zone", "America/New_York")
    text = ("--channel", "email", "--subject", "Hi {{ name }}", "--text", "Hello {{ name }}.")
    assert cli("templates", "put", cli.topic, *text).code == 0
    assert cli("templates", "put", cli.topic, "--channel", "in_app", "--title", "Hi", "--body", "{{ name }}").code == 0
    return cli.topic


def test_a_local_time_is_in_the_users_time_zone(cli: Cli, ada: str) -> None:
    done = cli("notify", ada, "--template", ada, "--var", "name=Ada", "--at", "tomorrow 09:00", "--id", f"{ada}-1")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"scheduled {ada}-1 to {ada} by email, in_app, due 20")
    assert " 09:00:00-0" in done.out
    found = cli.json("notifications", "show", f"{ada}-1")
    assert (found["state"], found["user"], found["variables"]) == ("pending", ada, {"name": "Ada"})
    assert found["due_at_local"][10:19] == "T09:00:00"
    again = cli("notify", ada, "--template", ada, "--var", "name=Ada", "--at", "tomorrow 09:00", "--id", f"{ada}-1")
    assert again.out.startswith(f"unchanged {ada}-1 ")
    other = cli("notify", ada, "--text", "other", "--id", f"{ada}-1")
    assert other.code == 4
    assert "choose another id" in other.err


def test_local_times_are_in_the_time_zone_of_each_user(cli: Cli, ada: str) -> None:
    assert cli("users", "put", f"{ada}-kim", "--email", "kim@example.com", "--zone", "Asia/Tokyo").code == 0
    done = cli("notify", ada, f"{ada}-kim", "--text", "Hi", "--at", "2029-11-20 09:00")
    assert [line.split(" due ")[1].split(" = ")[0] for line in done.out.splitlines()] == [
        "2029-11-20 09:00:00-05:00",
        "2029-11-20 09:00:00+09:00",
    ]


def test_a_repeat_of_a_cancelled_notification_is_a_conflict(cli: Cli, ada: str) -> None:
    said = ("notify", ada, "--text", "x", "--channel", "in_app", "--at", "+1h", "--id", ada)
    assert cli(*said).code == 0
    assert cli(*said).out.startswith(f"unchanged {ada} to {ada} by in_app, due ")
    assert cli("notifications", "cancel", ada).code == 0
    again = cli(*said)
    assert (again.code, again.out) == (
        4,
        f"unchanged {ada} to {ada} by in_app: it is already cancelled, and nothing new will be sent\n",
    )
    assert cli(*said, "--json").code == 4


def test_a_sent_notification_is_a_file_and_in_the_deliveries(cli: Cli, ada: str, node: RunningNode) -> None:
    cli.json("notify", ada, "--template", ada, "--var", "name=Ada", "--channel", "email", "--id", ada)
    found = cli.settled(ada)
    [delivery] = found["deliveries"]
    assert (delivery["provider"], delivery["channel"]) == ("files", "email")
    message = (node.files / delivery["provider_id"]).read_text()
    assert "Subject: Hi Ada\n" in message
    assert "Hello Ada." in message
    heads, row = cli("deliveries", "--user", ada).out.splitlines()
    assert heads.split() == [
        "delivery",
        "to",
        "channel",
        "provider",
        "state",
        "late",
        "sent",
        "provider's",
        "id",
        "why",
    ]
    assert row.split()[:5] == [f"{ada}/1", ada, "email", "files", "sent"]
    assert " ms  20" in row
    assert delivery["provider_id"] in row
    assert cli("deliveries", "list", "--user", ada).out.splitlines()[1] == row
    assert cli("deliveries", "--notification", ada, "--json").out == cli("deliveries", "--user", ada, "--json").out
    shown = cli("deliveries", "show", f"{ada}/1").out
    assert "attempt  channel  provider" in shown
    assert "accepted" in shown


def test_explain(cli: Cli, ada: str) -> None:
    cli.json("notify", ada, "--text", "Hello.", "--title", "Hi", "--channel", "in_app", "--id", ada)
    cli.settled(ada)
    done = cli("notifications", "explain", ada)
    assert done.out.splitlines()[0] == f"{ada} sent"
    events = [event["event"] for event in cli.json("notifications", "explain", ada)["history"]]
    assert events == ["accepted", "released", "attempt", "accepted", "sent"]
    assert "delivery" not in done.out.splitlines()[1].split()


def test_explain_names_the_deliveries_where_there_are_several(cli: Cli, ada: str) -> None:
    channels = ("--channel", "email", "--channel", "in_app", "--spread", "all")
    cli.json("notify", ada, "--text", "Hello.", "--title", "Hi", *channels, "--id", ada)
    cli.settled(ada)
    _, heads, *lines = cli("notifications", "explain", ada).out.splitlines()
    assert "delivery" in heads.split()
    assert all(any(f"{ada}/1/{channel}" in line for line in lines) for channel in ("email", "in_app"))


def test_each_of_several_users_has_an_outcome(cli: Cli, ada: str) -> None:
    cli("users", "put", f"{ada}-2", "--email", "two@example.com", "--zone", "Asia/Tokyo")
    said = ("--template", ada, "--var", "name=You", "--at", "tomorrow 09:00")
    done = cli("notify", ada, f"{ada}-2", *said, "--id", f"{ada}-all", "--json")
    assert done.code == 0
    first, second = (json.loads(line) for line in done.out.splitlines())
    assert (first["outcome"], second["outcome"]) == ("scheduled", "scheduled")
    assert first["due_at"] != second["due_at"]
    assert len(cli("notifications", "list", "--batch", f"{ada}-all", "--json").out.splitlines()) == 2
    some = cli("notify", ada, f"{ada}-nobody", *said)
    assert some.code == 1
    assert "unknown user" in some.out.splitlines()[1]


def test_a_bare_address(cli: Cli) -> None:
    done = cli("notify", "--to", "bob@example.com", "--channel", "email", "--text", "Hello.", "--id", cli.topic)
    assert done.out.startswith(f"scheduled {cli.topic} to bob@example.com by email")
    assert cli.settled(cli.topic)["deliveries"][0]["address"] == "bob@example.com"
    device = ("--to", f"apns:{'ab' * 32}", "--channel", "push", "--text", "Hello.", "--title", "Hi")
    made = cli.json("notify", *device)
    assert cli.settled(made["id"])["to"]["platform"] == "apns"


def test_every_option_is_sent(cli: Cli, ada: str) -> None:
    policy = ["--priority", "high", "--category", "news", "--expires-after", "2h", "--locale", "de", "--late", "skip"]
    more = ["--batch", "autumn", "--collapse", "c", "--dedupe-key", ada, "--dedupe-window", "1h", "--jitter", "1s"]
    channels = ["--channel", "email", "--channel", "in_app", "--spread", "all"]
    when = ["--cron", "0 9 * * MON", "--count", "3"]
    words = ["--template", ada, "--vars", '{"name": "Ada"}', "--version", "current"]
    made = cli.json("notify", ada, *policy, *more, *channels, *when, *words)
    found = cli.json("notifications", "show", made["id"])
    assert (found["priority"], found["category"], found["locale"]) == ("high", "news", "de")
    assert (found["batch"], found["collapse"], found["spread"]) == ("autumn", "c", "all")
    assert (found["version"], found["channels"], found["expires_after"]) == (2, ["email", "in_app"], "PT2H")
    again = cli("notify", ada, *policy, *more, *channels, *when, *words)
    assert again.code == 0
    assert again.out.startswith("skipped ")
    assert again.out.endswith(f": duplicate of {made['id']}\n")
    assert cli.json("notify", ada, "--text", "x", "--channel", "all", "--at", "+1h")["channels"] == [
        "email",
        "sms",
        "in_app",
    ]


def test_list_and_cancel(cli: Cli, ada: str) -> None:
    for number in range(3):
        cli.json("notify", ada, "--text", f"{number}", "--at", "+1h", "--id", f"{ada}-{number}", "--channel", "in_app")
    listed = cli("notifications", "list", "--user", ada, "--state", "pending", "--since", "-1h", "--limit", "2")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["id", f"{ada}-2", f"{ada}-1"]
    assert "--cursor" in listed.err
    done = cli("notifications", "cancel", f"{ada}-0", "none-such", f"{ada}-1")
    assert done.code == 3
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["cancelled", f"{ada}-0"],
        ["cancelled", f"{ada}-1"],
    ]
    assert "none-such: unknown notification" in done.err
    assert cli.json("notifications", "show", f"{ada}-0")["state"] == "cancelled"
    left = cli("notifications", "list", "--user", ada, "--state", "pending", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in left] == [f"{ada}-2"]


def test_a_sent_notification_can_neither_be_cancelled_nor_retried(cli: Cli, ada: str) -> None:
    cli.json("notify", ada, "--text", "x", "--channel", "in_app", "--id", ada)
    cli.settled(ada)
    cancelled = cli("notifications", "cancel", ada)
    assert cancelled.code == 4
    assert f"run `tidings notifications show {ada}`" in cancelled.err
    retried = cli("deliveries", "retry", f"{ada}/1", "--json")
    assert retried.code == 4
    assert json.loads(retried.out)["outcome"] == "rejected"
    assert cli("deliveries", "retry", f"{ada}/9").code == 3
    assert cli("deliveries", "show", f"{ada}/9").code == 3


@pytest.mark.slow
def test_a_failed_delivery_is_sent_again(cli: Cli, ada: str) -> None:
    cli("suppressions", "add", "email", f"{ada}@example.com")
    cli("users", "put", ada, "--email", f"{ada}@example.com")
    cli.json("notify", ada, "--text", "x", "--channel", "email", "--id", ada)
    assert cli.settled(ada, "skipped")["reason"] == "suppressed"
    assert "suppressed" in cli("deliveries", "--user", ada, "--state", "skipped").out
    cli("suppressions", "remove", "email", f"{ada}@example.com")
    done = cli("deliveries", "retry", f"{ada}/1")
    assert done.out == f"{ada}/1 is pending again\n"
    cli.settled(ada)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((), "no recipient"),
        (("ada", "--to", "x@example.com", "--text", "x"), "either a USER (or several) or --to ADDRESS, not both"),
        (("ada",), "--template, or the text as --text"),
        (("ada", "--template", "t", "--text", "x"), "not both"),
        (("ada", "--title", "x"), "--text is missing"),
        (("ada", "--text", "x", "--var", "a=b"), "need --template"),
        (("ada", "--template", "t", "--version", "zero"), "--version zero"),
        (("ada", "--text", "x", "--channel", "all", "--channel", "sms"), "leave the others out"),
        (("ada", "--text", "x", "--channel", "fax"), "choose from"),
        (("--to", "abcdef", "--channel", "push", "--text", "x"), "apns:abcdef"),
        (("--to", "x@example.com", "--text", "x"), "a bare address needs a channel"),
        (("--to", "x@☃.com", "--channel", "email", "--text", "x"), "the domain '☃.com' is not valid"),
        (("nobody-at-all", "--text", "x"), "unknown user 'nobody-at-all'"),
        (("ada", "--template", "no-such-template"), "unknown template"),
        (("ada", "--template", "t", "--vars", "name=Ada"), "--vars: is not valid JSON: expecting value (line 1"),
        (("ada", "--text", "x", "--at", "now", "--cron", "* * * * *"), "not allowed with"),
    ],
)
def test_wrong_usage(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    done = cli("notify", *argv)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_missing_variable_is_refused_at_acceptance(cli: Cli, ada: str) -> None:
    done = cli("notify", ada, "--template", ada, "--at", "tomorrow 09:00")
    assert done.code == 2
    assert "variables: missing 'name'" in done.err
    wrong = cli("notify", ada, "--text", "x", "--at", "tomorow 9")
    assert wrong.code == 2
    assert "at: " in wrong.err


def test_invalid_arguments_of_deliveries_are_refused(cli: Cli) -> None:
    assert "did you mean retry" in cli("deliveries", "retri", "x").err
    assert cli("deliveries", "--state", "sended").code == 2
    assert cli("deliveries", "--user", "nobody-at-all").err.startswith("no deliveries match")
    assert cli("deliveries", "retry").code == 2
    assert cli("notifications", "show", "none-such").code == 3


def test_ten_megabytes_of_variables_are_refused_with_a_reason(cli: Cli, ada: str, tmp_path: Path) -> None:
    file = tmp_path / "big.json"
    file.write_text(json.dumps({"name": "x" * 10_500_000}))
    done = cli("notify", ada, "--template", ada, "--vars", f"@{file}")
    assert done.code == 2
    assert "the body is larger than 4194304 bytes: send shorter variables" in done.err
    assert "ndjson" not in done.err


@pytest.mark.slow
def test_all_failed_deliveries_are_sent_again_by_one_command(cli: Cli, ada: str) -> None:
    cli("users", "change", ada, "--prefer", "news=no")
    for number in range(3):
        cli("notify", ada, "--text", "x", "--channel", "in_app", "--category", "news", "--id", f"{ada}-{number}")
    for number in range(3):
        cli.settled(f"{ada}-{number}", "skipped")
    cli("users", "change", ada, "--prefer", "news=yes")
    whom = ("deliveries", "retry", "--state", "skipped", "--user", ada)
    assert "no deliveries match: `" in cli(*whom, "--until", "-1h").err
    assert cli(*whom, "--channel", "email").out == ""
    done = cli(*whom, "--since", "-1h")
    assert (done.code, len(done.out.splitlines())) == (0, 3)
    for number in range(3):
        cli.settled(f"{ada}-{number}")
    for wrong in ((), ("x/1", "--state", "failed"), ("--user", ada)):
        refused = cli("deliveries", "retry", *wrong)
        assert (refused.code, "--state failed|expired" in refused.err) == (2, True), wrong


def test_search_by_address_category_priority_and_time(cli: Cli, ada: str) -> None:
    address = f"{ada}@Example.com"
    cli.json("notify", "--to", address, "--channel", "email", "--text", "x", "--title", "x", "--id", f"{ada}-bare")
    cli.json("notify", ada, "--text", "x", "--channel", "in_app", "--id", f"{ada}-2", "--priority", "high")
    cli.json("notify", ada, "--text", "x", "--channel", "in_app", "--id", f"{ada}-3", "--category", "news")
    cli.settled(f"{ada}-bare")
    cli.settled(f"{ada}-2")
    cli.settled(f"{ada}-3")

    def found(*argv: str) -> list[str]:
        return [json.loads(line)["id"] for line in cli("notifications", *argv, "--json").out.splitlines()]

    assert found("--to", address.lower()) == [f"{ada}-bare"]
    assert found("--to", address, "--category", "news") == []
    assert found("--user", ada, "--priority", "high") == found("list", "--user", ada, "--priority", "high")
    assert found("--user", ada, "--priority", "high") == [f"{ada}-2"]
    assert found("--user", ada, "--category", "news") == [f"{ada}-3"]
    assert len(cli("deliveries", "--user", ada, "--since", "-1h").out.splitlines()) == 3
    assert cli("deliveries", "--user", ada, "--until", "-1h").out == ""


def test_a_hint_names_the_exact_command(cli: Cli) -> None:
    assert "deliveries retry --help`" in cli("deliveries", "retry", "x/1", "--nonsense").err
    assert "users put --help`" in cli("users", "put", "x", "--nonsense").err


def test_options_that_have_no_effect_are_refused(cli: Cli, ada: str) -> None:
    both = cli("notify", ada, "--text", "x", "--template", ada)
    assert (both.code, "not both" in both.err) == (2, True)
    nothing = cli("templates", "put", ada)
    assert (nothing.code, "nothing to change" in nothing.err) == (2, True)
    twice = cli("templates", "put", ada, "--urgency", "digest", "--expires-after", "2h")
    assert (twice.code, "give one" in twice.err) == (2, True)
    before = cli("notify", ada, "--text", "x", "--channel", "in_app", "--expires-after", "-5m")
    assert (before.code, "expires_after" in before.err) == (2, True)
    one = cli("notify", f"{ada}", "--template", ada, "--channel", "email")
    assert one.code == 2
    assert "missing 'name', which template" in one.err
    device = cli("users", "change", ada, "--device", "apns:nonsense")
    assert "64 to 200 hexadecimal digits" in device.err


def test_a_local_time_moved_by_a_dst_gap_is_noted(cli: Cli, ada: str) -> None:
    done = cli("notify", ada, "--text", "x", "--channel", "in_app", "--at", "2029-03-11 02:30")
    assert (done.code, "02:30 does not exist on 2029-03-11" in done.err) == (0, True)


def test_quiet_hours_are_shown_whole(cli: Cli, ada: str) -> None:
    cli("users", "change", ada, "--quiet", "22:00-07:00", "--high", "hold")
    assert "22:00-07:00 (high too)" in cli("users", "get", ada).out


def test_the_inbox_of_an_unknown_user_is_not_found(cli: Cli, ada: str) -> None:
    assert cli("inbox", ada).err == "the inbox is empty\n"
    nobody = cli("inbox", "nobody-at-all")
    assert (nobody.code, "unknown user 'nobody-at-all'" in nobody.err) == (3, True)


def test_the_schedule_of_a_notification_cannot_be_changed(cli: Cli, ada: str) -> None:
    assert cli("notify", ada, "--text", "x", "--channel", "in_app", "--at", "+1h", "--id", ada).code == 0
    for said in (("replace", ada, "--to", cli.topic, "other", "--at", "+2h"), ("cancel", ada)):
        done = cli(*said)
        assert done.code == 4
        assert f"`tidings notifications cancel {ada}`" in done.err
    assert cli("pause", ada).code == 0
    found = cli.json("notifications", "show", ada)
    assert (found["state"], found["reason"]) == ("pending", "paused")
    assert cli("notifications", "cancel", ada).code == 0


def test_replace_reschedule_pause_and_resume(cli: Cli, ada: str) -> None:
    assert cli("notifications", "replace", ada, ada, "--text", "Tea", "--at", "+1h").out.startswith(f"scheduled {ada}")
    replaced = cli("notifications", "replace", ada, ada, "--text", "Cake", "--at", "+1h")
    assert (replaced.code, replaced.out.startswith(f"replaced {ada}")) == (0, True)
    moved = cli.json("notifications", "reschedule", ada, "--at", "2030-01-01T09:00")
    assert (moved["outcome"], moved["due_at"]) == ("replaced", "2030-01-01T14:00:00.000000Z")
    assert cli("notifications", "pause", ada).out.startswith(f"paused {ada}")
    shown = cli.json("notifications", "show", ada)
    assert (shown["reason"], shown["content"]) == ("paused", {"text": "Cake"})
    assert cli("notifications", "resume", ada).out.startswith(f"resumed {ada}")
    assert cli("notifications", "cancel", ada).code == 0
    assert cli("notifications", "pause", ada, "none-such").code == 4
    assert cli("notifications", "replace", ada, ada, "--text", "Tea").code == 4
    again = cli("notifications", "replace", ada, ada, "--text", "Tea", "--at", "+1h", "--reuse")
    assert (again.code, again.out.startswith(f"scheduled {ada}")) == (0, True)
    assert cli("notifications", "replace", ada, ada, f"{ada}-2", "--text", "Tea").code == 2
    assert cli("notifications", "reschedule", "none-such", "--at", "+1h").code == 3
    assert cli("notifications", "reschedule", ada).code == 2


def test_change_single_fields(cli: Cli, ada: str) -> None:
    assert cli("notify", ada, "--text", "Tea", "--channel", "in_app", "--at", "+1h", "--id", ada).code == 0
    before = cli.json("notifications", "show", ada)
    changed = cli.json("notifications", "change", ada, "--text", "Cake", "--priority", "high", "--late", "skip")
    assert (changed["outcome"], changed["due_at"]) == ("replaced", before["due_at"])
    after = cli.json("notifications", "show", ada)
    assert (after["content"], after["priority"], after["late"]) == ({"text": "Cake"}, "high", "skip")
    assert cli.json("notifications", "change", ada, "--priority", "high")["outcome"] == "unchanged"
    assert cli.json("notifications", "change", ada, "--unset", "late")["outcome"] == "replaced"
    assert cli("notifications", "change", ada).code == 2
    assert cli("notifications", "change", ada, "--late", "skip", "--unset", "late").code == 2
    assert cli("notifications", "pause", ada).code == 0
    paused = cli("notifications", "list", "--state", "paused", "--user", ada, "--json").out.splitlines()
    assert len(paused) == 1
    assert ada in paused[0]
    assert cli.json("notifications", "resume", ada, "--missed", "skip")["outcome"] == "resumed"
    assert cli("notifications", "cancel", ada).code == 0
    refused = cli("notifications", "change", ada, "--priority", "low")
    assert refused.code == 4
    assert f"it was cancelled: run `tidings notifications replace {ada} USER ... --reuse`" in refused.err


def test_send_a_file(cli: Cli, ada: str, tmp_path: Path) -> None:
    good = {"user": ada, "content": {"text": "Tea"}, "channel": "in_app", "at": "+1h"}
    lines = [good | {"id": f"{ada}-1"}, good | {"id": f"{ada}-2"}, {"user": "nobody", "content": {"text": "x"}}]
    file = tmp_path / "lines.ndjson"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n{x\n")
    done = cli("notify", "--from", str(file))
    assert done.code == 1
    assert done.out.startswith("2 scheduled, 2 rejected")
    assert "line 3: rejected: user: unknown user 'nobody'" in done.err
    assert "line 4: rejected: body: is not valid JSON" in done.err
    file.write_text(json.dumps(good | {"id": f"{ada}-1", "priority": "low"}))
    taken = cli("notify", "--from", str(file))
    assert taken.code == 4
    assert f"replace it (`tidings notifications replace {ada}-1 USER ...`)" in taken.err
    both = cli("notify", ada, "--from", str(file))
    assert both.code == 2
    assert "with --from, each line gives its own fields: leave out USER" in both.err
    assert cli("notify", "--from", str(tmp_path / "none")).code == 2
