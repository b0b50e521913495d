"""`templates`: parts are merged, each change is a version, and wrong usage is reported by option."""

import json
from pathlib import Path

import pytest

from tests.edges.cli.conftest import Cli


def put_email(cli: Cli, *argv: str) -> None:
    done = cli("templates", "put", cli.topic, "--channel", "email", "--subject", "Hi {{ name }}", *argv)
    assert done.code == 0, done


def test_a_part_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "reminder.liquid").write_text("Hello {{ name }},\nit is {{ hour }}.\n")
    argv = ("--channel", "email", "--subject", "Hi {{ name }}", "--body", f"@{tmp_path / 'reminder.liquid'}")
    done = cli("templates", "put", cli.topic, *argv)
    assert done == (0, f"stored {cli.topic} version 1: email; needs hour, name\n", "")
    found = cli.json("templates", "get", cli.topic)
    assert found["parts"] == {
        "email": {"en": {"subject": "Hi {{ name }}", "text": "Hello {{ name }},\nit is {{ hour }}.\n"}}
    }
    shown = cli("templates", "get", cli.topic).out
    assert "email en\n  subject  Hi {{ name }}\n  text\n    Hello {{ name }},\n    it is {{ hour }}.\n" in shown
    assert cli("templates", "put", cli.topic, *argv).out.startswith(f"unchanged {cli.topic} version 1")


def test_other_parts_stay_as_they_are(cli: Cli) -> None:
    put_email(cli, "--text", "Hello.")
    cli("templates", "put", cli.topic, "--channel", "sms", "--body", "Hi {{ name }}")
    cli("templates", "put", cli.topic, "--channel", "push", "--title", "Hi", "--body", "you")
    cli("templates", "put", cli.topic, "--channel", "webhook", "--body", '{"to": "{{ name }}", "n": [1]}')
    cli("templates", "put", cli.topic, "--channel", "in_app", "--title", "Hi", "--body", "you")
    cli("templates", "put", cli.topic, "--channel", "email", "--html", "<p>Hello.</p>")
    done = cli("templates", "put", cli.topic, "--channel", "sms", "--locale", "de", "--text", "Hallo {{ name }}")
    assert done.out == f"stored {cli.topic} version 7: email, sms, push, webhook, in_app; needs name\n"
    parts = cli.json("templates", "get", cli.topic)["parts"]
    assert parts["email"]["en"] == {"subject": "Hi {{ name }}", "text": "Hello.", "html": "<p>Hello.</p>"}
    assert {locale: part["text"] for locale, part in parts["sms"].items()} == {
        "en": "Hi {{ name }}",
        "de": "Hallo {{ name }}",
    }
    assert parts["webhook"]["en"]["body"] == {"to": "{{ name }}", "n": [1]}
    old = cli.json("templates", "get", cli.topic, "--version", "2")
    assert sorted(old["parts"]) == ["email", "sms"]
    rows = cli("templates", "versions", cli.topic, "--limit", "2").out.splitlines()
    assert [row.split()[0] for row in rows] == ["version", "7", "6"]


def test_a_webhook_may_have_an_empty_document(cli: Cli) -> None:
    cli("templates", "put", cli.topic, "--channel", "webhook", "--body", "{}")
    done = cli("templates", "put", cli.topic, "--channel", "sms", "--text", "Hi")
    assert done.out == f"stored {cli.topic} version 2: sms, webhook\n"
    assert "  body  {}\n" in cli("templates", "get", cli.topic).out


def test_the_first_language_is_the_templates_own(cli: Cli) -> None:
    cli("templates", "put", cli.topic, "--channel", "sms", "--locale", "de", "--text", "Hallo")
    cli("templates", "put", cli.topic, "--channel", "in_app", "--title", "Hallo", "--body", "du")
    found = cli.json("templates", "get", cli.topic)
    assert found["locale"] == "de"
    assert list(found["parts"]["in_app"]) == ["de"]


def test_expiry_of_a_template(cli: Cli) -> None:
    put_email(cli, "--text", "Hello.", "--urgency", "digest")
    assert cli.json("templates", "get", cli.topic)["urgency"] == "digest"
    assert cli("templates", "put", cli.topic, "--expires-after", "2h").code == 0
    found = cli.json("templates", "get", cli.topic)
    assert found["expires_after"] == "PT2H"
    assert "urgency" not in found
    assert cli("templates", "put", cli.topic, "--channel", "sms", "--text", "Hello.").code == 0
    assert cli.json("templates", "get", cli.topic)["expires_after"] == "PT2H"


def test_all_parts_from_a_file(cli: Cli, tmp_path: Path) -> None:
    whole = {"parts": {"sms": {"en": {"text": "Hi"}}}, "locale": "en", "urgency": "asap"}
    (tmp_path / "template.json").write_text(json.dumps(whole))
    put_email(cli, "--text", "Hello.")
    made = cli.json("templates", "put", cli.topic, "--file", str(tmp_path / "template.json"))
    assert (made["version"], made["channels"]) == (2, ["sms"])
    assert cli("templates", "put", cli.topic, "--file", str(tmp_path / "template.json"), "--text", "x").code == 2
    (tmp_path / "template.json").write_text("[1]")
    done = cli("templates", "put", cli.topic, "--file", str(tmp_path / "template.json"))
    assert done.code == 2
    assert "is not a JSON object" in done.err


def test_an_error_in_a_file_names_the_field_as_it_is_there(cli: Cli, tmp_path: Path) -> None:
    email = {"en": {"subject": "Hi", "text": "x"}, "de": {"subject": 5, "text": "x"}}
    sms = {"fr": {}, "it": {"text": "{{ name"}}
    (tmp_path / "template.json").write_text(json.dumps({"parts": {"email": email, "sms": sms}}))
    done = cli("templates", "put", cli.topic, "--file", str(tmp_path / "template.json"))
    assert done.code == 2
    assert "parts.email.de.subject: is a number: send text" in done.err
    (tmp_path / "template.json").write_text(json.dumps({"parts": {"sms": sms}}))
    done = cli("templates", "put", cli.topic, "--file", str(tmp_path / "template.json"))
    assert "parts.sms.fr.text: is missing" in done.err


def test_preview(cli: Cli) -> None:
    put_email(cli, "--text", "Hello {{ name }}.")
    cli("templates", "put", cli.topic, "--channel", "sms", "--text", "Hi {{ name }}, {{ n }} items")
    done = cli("templates", "preview", cli.topic, "--vars", '{"name": "Bob", "n": 3}', "--var", "name=Ada")
    assert done.code == 0
    assert done.out == (
        "email\n  title  Hi Ada\n  text  Hello Ada.\n\nsms\n  text  Hi Ada, 3 items\n  segments  1 (GSM-7)\n"
    )
    one = cli.json("templates", "preview", cli.topic, "--channel", "email", "--var", "name=Ada")
    assert (one["title"], one["text"]) == ("Hi Ada", "Hello Ada.")
    missing = cli("templates", "preview", cli.topic, "--channel", "email")
    assert missing.code == 2
    assert "variables: missing 'name'" in missing.err
    assert cli("templates", "preview", f"{cli.topic}-none", "--channel", "sms").code == 3


@pytest.mark.slow
def test_a_template_used_by_pending_notifications_cannot_be_deleted(cli: Cli) -> None:
    put_email(cli, "--text", "Hello.")
    cli("users", "put", cli.topic, "--email", "ada@example.com")
    cli.json("notify", cli.topic, "--template", cli.topic, "--var", "name=Ada", "--at", "+1h")
    more = ("templates", "put", cli.topic, "--channel", "email", "--text", "Hello {{ more }}.")
    refused = cli(*more)
    assert refused.code == 4
    assert "more" in refused.err
    assert cli(*more, "--force").code == 0
    assert cli("templates", "delete", cli.topic).code == 4
    assert cli("templates", "delete", cli.topic, "--force").out == f"deleted {cli.topic}\n"
    assert cli("templates", "get", cli.topic).code == 3


def test_list(cli: Cli) -> None:
    put_email(cli, "--text", "Hello.")
    lines = cli("templates", "list", "--all").out.splitlines()
    assert lines[0].split() == ["name", "latest", "changed"]
    assert any(line.split()[:2] == [cli.topic, "1"] for line in lines)


def test_html_in_a_text_part_prints_a_warning(cli: Cli) -> None:
    done = cli("templates", "put", cli.topic, "--channel", "email", "--subject", "Hi", "--body", "<p>Hello</p>")
    assert done.code == 0
    assert "use --html for HTML" in done.err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--subject", "x"), "the channel is missing"),
        (("--channel", "email"), "--subject, --html, --text"),
        (("--channel", "sms", "--subject", "x"), "sms has no --subject"),
        (("--channel", "email", "--subject", "x", "--body", "a", "--text", "b"), "--text is given twice"),
        (("--channel", "email", "--text", "x"), "tidings: --subject: is missing: give it"),
        (("--channel", "sms", "--text", "{{ name"), "tidings: --text: "),
        (("--channel", "sms", "--locale", "de", "--body", "{{ name"), "tidings: --body: "),
        (("--channel", "webhook", "--body", "text"), "is not valid JSON: expecting value (line 1, column 1)"),
        (("--channel", "fax", "--body", "text"), "choose from"),
        (("--channel", "sms", "--text", "@/no/such/file"), "cannot read"),
        (("--channel", "sms", "--text", "x", "--expires-after", "2 moons"), "expires_after"),
        (("--channel", "sms", "--text", "x", "--locale", "klingonese!"), "is not a language"),
    ],
)
def test_wrong_usage(cli: Cli, argv: tuple[str, ...], said: str) -> None:
    done = cli("templates", "put", cli.topic, *argv)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
