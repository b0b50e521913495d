"""The checks of a rendered message."""

import pytest

from tidings.domain.errors import Invalid
from tidings.domain.notifications.message import BODY_BYTES_MAX, Email, InApp


@pytest.mark.parametrize("character", ["x", "é", "€", "😀", "\ud800"])
def test_a_body_is_refused_by_its_bytes(character: str) -> None:
    most = BODY_BYTES_MAX // len(character.encode("utf-8", "surrogatepass"))
    for length in (most, BODY_BYTES_MAX // 4):
        InApp("n-1", "ada", "acme", "Tea", character * length)
    with pytest.raises(Invalid, match=f"more than {BODY_BYTES_MAX}") as refused:
        InApp("n-1", "ada", "acme", "Tea", character * (most + 1))
    assert refused.value.field == "body"


@pytest.mark.parametrize("field", ["text", "html"])
@pytest.mark.parametrize("body", ["\x00", "x" * 1_000 + "\x00", "\x00" + "x" * BODY_BYTES_MAX])
def test_no_body_has_a_nul_character(field: str, body: str) -> None:
    with pytest.raises(Invalid, match="NUL") as refused:
        Email(**{"id": "n-1", "to": "ada@example.org", "subject": "Tea", "text": "", field: body})
    assert refused.value.field == field
