"""The document store: documents found by name or by tag, changed by compare-and-set in groups."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.contract.factories import ACME, NOW, SECOND, tend
from tidings.ports import ANY, NAME_BYTES_MAX, Change, Document, Key, Place, Put, Remove, Store, Unchanged

GLOBEX = "globex"


def key(name: str, kind: str = "user", tenant: str = ACME) -> Key:
    return Key(tenant, kind, name)


def put(
    name: str,
    body: bytes = b"{}",
    expected: int = 0,
    *,
    tags: tuple[str, ...] = (),
    order: int = 0,
    until: int | None = None,
    kind: str = "user",
    tenant: str = ACME,
) -> Put:
    return Put(key(name, kind, tenant), body, expected, tags, order, until)


async def got(store: Store, name: str, now: int = NOW) -> Document | None:
    (found,) = await store.documents.get([key(name)], now)
    return found


async def kept(store: Store, name: str, now: int = NOW) -> Document:
    found = await got(store, name, now)
    assert found is not None
    return found


async def change(store: Store, *changes: Put | Remove | Unchanged, now: int = NOW) -> bool:
    """One group."""
    (answer,) = await made(store, [changes], now)
    return answer


async def made(store: Store, groups: Sequence[Sequence[Change]], now: int = NOW) -> list[bool]:
    """Which groups were made."""
    return [answer != 0 for answer in await store.documents.change(groups, now)]


async def names(
    store: Store,
    tag: str,
    now: int = NOW,
    *,
    tenant: str = ACME,
    kind: str = "user",
    after: Place | None = None,
    limit: int = 100,
    newest: bool = False,
) -> list[str]:
    found = await store.documents.find(tenant, kind, tag, now, after=after, limit=limit, newest=newest)
    return [document.key.name for document in found]


# --- get ---


async def test_a_document_is_returned_as_it_was_put(store: Store) -> None:
    assert await got(store, "ann") is None
    assert await change(store, put("ann", b"\x00\xff", tags=("b", "a"), order=7, until=NOW + 1))
    found = await kept(store, "ann")
    assert found == Document(key("ann"), b"\x00\xff", found.version, ("b", "a"), 7, NOW + 1)
    assert found.version > 0


async def test_documents_are_returned_in_the_order_of_the_keys(store: Store) -> None:
    assert await store.documents.get([], NOW) == []
    assert await change(store, *(put(f"u{number}", b"%d" % number) for number in range(300)))
    asked = [key(name) for name in ("u299", "u0", "nobody", "u7", "u0")] + [key(f"u{n}") for n in range(300)]
    found = await store.documents.get(asked, NOW)
    bodies = [None if one is None else one.body for one in found]
    assert bodies == [b"299", b"0", None, b"7", b"0"] + [b"%d" % number for number in range(300)]
    assert [one.key for one in found if one is not None] == [one for one in asked if one.name != "nobody"]


async def test_tenants_and_kinds_are_separate(store: Store) -> None:
    same = [put("ann", place.encode(), tags=("t",), tenant=place[0], kind=place[1:]) for place in ("au", "av", "bu")]
    assert await change(store, *same)
    found = await store.documents.get([one.key for one in same], NOW)
    assert [one.body for one in found if one is not None] == [b"au", b"av", b"bu"]
    for one in same:
        (document,) = await store.documents.find(one.key.tenant, one.key.kind, "t", NOW)
        assert (document.key, document.body) == (one.key, one.body)
    assert await change(store, Remove(same[0].key))
    assert await store.documents.get([one.key for one in same], NOW) == [None, *found[1:]]
    assert await store.documents.find("a", "u", "t", NOW) == []


async def test_the_parts_of_a_key_are_not_confused(store: Store) -> None:
    places = [("a", "bc", "d"), ("ab", "c", "d"), ("a", "b", "cd"), ("a\0b", "c", "d"), ("a", "b\0c", "d")]
    assert await change(store, *(Put(Key(*place), str(place).encode(), 0) for place in places))
    found = await store.documents.get([Key(*place) for place in places], NOW)
    assert [one.body for one in found if one is not None] == [str(place).encode() for place in places]


ODD = [
    "",
    "\0",
    "a\0b",
    "a\0",
    "a",
    "é",
    "e\u0301",
    "世界",
    "🎉",
    "\U0010ffff",
    "\uffff",
    "a b",
    "%s",
    "'",
    '"',
    "A",
    "Z",
]


async def test_names_and_tags_may_be_any_text(store: Store) -> None:
    assert await change(store, *(put(name, name.encode(), tags=("all", name)) for name in ODD))
    assert await names(store, "all") == sorted(ODD)
    assert await names(store, "all", newest=True) == sorted(ODD, reverse=True)
    for name in ODD:
        found = await kept(store, name)
        assert (found.body, found.tags) == (name.encode(), ("all", name) if name != "all" else ("all",))
        assert await names(store, name) == [name]
        assert await names(store, "all", after=(0, name)) == [one for one in sorted(ODD) if one > name]
    assert await change(store, *(Remove(key(name)) for name in ODD))
    assert await names(store, "all") == []


async def test_names_and_tags_may_be_long(store: Store) -> None:
    longest = "".join(chr(0x4E00 + number % 20_000) for number in range(NAME_BYTES_MAX // 3))
    tag = "".join(chr(0x4E00 + number * 7 % 20_000) for number in range(10_000))
    assert len(longest.encode()) == NAME_BYTES_MAX
    assert await change(store, put(longest, tags=(tag, tag + "x")))
    assert (await kept(store, longest)).tags == (tag, tag + "x")
    assert await names(store, tag) == await names(store, tag + "x") == [longest]
    assert await names(store, tag, after=(0, longest[:-1])) == [longest]


@pytest.mark.parametrize("body", [b"", b"\0", b"x" * 300_000])
async def test_bodies_may_be_empty_or_large(store: Store, body: bytes) -> None:
    assert await change(store, put("ann", body, tags=("t",)))
    assert (await kept(store, "ann")).body == body
    (found,) = await store.documents.find(ACME, "user", "t", NOW)
    assert found.body == body


# --- find ---


async def test_documents_of_a_tag_are_sorted_by_order_and_then_by_name(store: Store) -> None:
    made = [("b", 2), ("a", 2), ("c", 1), ("d", -5), ("e", 0), ("f", NOW)]
    assert await change(store, *(put(name, tags=("t", name), order=order) for name, order in made))
    assert await change(store, put("other", tags=("u",)), put("none"))
    assert await names(store, "t") == ["d", "e", "c", "a", "b", "f"]
    assert await names(store, "t", newest=True) == ["f", "b", "a", "c", "e", "d"]
    assert await names(store, "t", limit=2) == ["d", "e"]
    assert await names(store, "t", limit=2, newest=True) == ["f", "b"]
    assert await names(store, "t", limit=0) == []
    assert await names(store, "nobody has it") == []


@pytest.mark.parametrize("newest", [False, True])
async def test_a_search_continues_after_a_place(store: Store, newest: bool) -> None:
    made = sorted((number % 7, f"n{number:03}") for number in range(100))
    assert await change(store, *(put(name, tags=("t",), order=order) for order, name in made))
    seen: list[str] = []
    after: Place | None = None
    while found := await store.documents.find(ACME, "user", "t", NOW, after=after, limit=9, newest=newest):
        seen += [document.key.name for document in found]
        after = found[-1].order, found[-1].key.name
    assert seen == [name for _, name in (reversed(made) if newest else made)]
    assert await names(store, "t", after=(3, ""), limit=1, newest=newest) == (["n093"] if newest else ["n003"])
    assert await names(store, "t", after=(3, "n050x"), limit=1, newest=newest) == (["n045"] if newest else ["n052"])


async def test_a_put_updates_the_tags_of_a_document(store: Store) -> None:
    assert await change(store, put("ann", tags=("a", "b"), order=1))
    assert await change(store, put("ann", b"new", ANY, tags=("b", "c"), order=1))
    assert [await names(store, tag) for tag in "abc"] == [[], ["ann"], ["ann"]]
    assert await change(store, put("bob", tags=("b",), order=2))
    assert await change(store, put("ann", b"new", ANY, tags=("b", "c"), order=3))
    assert await names(store, "b") == ["bob", "ann"]
    assert await change(store, put("ann", b"newer", ANY, tags=("c", "b"), order=3))
    assert await names(store, "b") == ["bob", "ann"]
    assert (await kept(store, "ann")).tags == ("c", "b")
    assert await change(store, put("ann", b"bare", ANY))
    assert [await names(store, tag) for tag in "abc"] == [[], ["bob"], []]
    assert await change(store, Remove(key("bob")))
    assert await names(store, "b") == []


# --- compare and set ---


async def test_a_change_needs_the_expected_version(store: Store) -> None:
    assert not await change(store, put("ann", expected=5))
    assert not await change(store, Remove(key("ann"), 5))
    assert await change(store, put("ann", b"1"))
    first = await kept(store, "ann")
    for wrong in (0, first.version - 1, first.version + 1):
        assert not await change(store, put("ann", b"2", wrong))
        assert not await change(store, Remove(key("ann"), wrong))
    assert await kept(store, "ann") == first
    assert await change(store, put("ann", b"2", first.version))
    second = await kept(store, "ann")
    assert second.body == b"2"
    assert second.version > first.version
    assert not await change(store, Remove(key("ann"), first.version))
    assert await change(store, Remove(key("ann"), second.version))
    assert await got(store, "ann") is None


async def test_any_matches_every_version_and_a_missing_document(store: Store) -> None:
    assert await change(store, Remove(key("ann")))
    assert await change(store, put("ann", b"1", ANY))
    assert await change(store, put("ann", b"2", ANY))
    assert (await kept(store, "ann")).body == b"2"
    assert await change(store, Remove(key("ann")))
    assert await change(store, Remove(key("ann"), 0)), "it is not there, as expected"
    assert await got(store, "ann") is None


async def test_versions_never_repeat(store: Store) -> None:
    seen: set[int] = set()
    for turn in range(20):
        assert await change(store, put("ann", b"same", ANY))
        seen.add((await kept(store, "ann")).version)
        if turn % 3 == 0:
            assert await change(store, Remove(key("ann")))
        if turn % 5 == 0:
            assert await change(store, put("ann", b"same", ANY, until=NOW - 1))
            await tend(store, NOW)
    assert len(seen) == 20
    assert max(seen) == (await kept(store, "ann")).version


# --- groups ---


async def test_a_group_is_applied_completely_or_not_at_all(store: Store) -> None:
    assert await change(store, put("ann", b"old", tags=("t",)), put("bob", tags=("t",)))
    before = await kept(store, "ann")
    for wrong in (put("eve", expected=9), put("bob"), Remove(key("bob"), 99)):
        for group in ([put("ann", b"new", ANY), put("cid", tags=("t",)), wrong], [wrong, Remove(key("ann"))]):
            assert not await change(store, *group)
    assert await kept(store, "ann") == before
    assert await names(store, "t") == ["ann", "bob"]
    assert await got(store, "cid") is None
    assert await change(store, put("ann", b"new", before.version), put("cid"), Remove(key("bob")))
    assert (await kept(store, "ann")).body == b"new"
    assert await got(store, "bob") is None


async def test_a_group_can_require_an_unchanged_document(store: Store) -> None:
    assert await change(store, put("ann", b"1", tags=("t",), order=3, until=NOW + SECOND))
    before = await kept(store, "ann")
    rests = Unchanged(before.key, before.version)
    assert await change(store, rests, put("bob", b"1"))
    assert await kept(store, "ann") == before
    assert await names(store, "t") == ["ann"]
    assert not await change(store, rests, put("cid"), now=NOW + SECOND), "it is over by then"
    groups: list[list[Put | Remove | Unchanged]] = [
        [rests, put("bob", b"2", ANY)],
        [put("ann", b"2", before.version), put("cid")],
        [rests, put("bob", b"3", ANY)],
        [Remove(key("ann"))],
        [rests, put("bob", b"4", ANY)],
    ]
    assert await made(store, groups) == [True, True, False, True, False]
    assert (await kept(store, "bob")).body == b"2"
    assert not await change(store, rests, put("dan"))
    assert [await got(store, name) for name in ("ann", "dan")] == [None, None]


async def test_an_applied_group_returns_the_version_of_its_last_put(store: Store) -> None:
    assert await change(store, put("ann", b"1"))
    there = await kept(store, "ann")
    groups: list[list[Put | Remove | Unchanged]] = [
        [Unchanged(there.key, there.version), put("bob"), put("cid")],
        [put("ann", b"2", there.version), Remove(key("dan"))],
        [put("ann", b"3", there.version)],
        [Remove(key("ann"))],
    ]
    several, changed, refused, removed = await store.documents.change(groups, NOW)
    assert (await kept(store, "bob")).version < several == (await kept(store, "cid")).version < changed
    assert refused == 0
    assert removed != 0
    [last] = await store.documents.change([[put("cid", b"2", several)]], NOW)
    assert last == (await kept(store, "cid")).version


async def test_groups_see_the_changes_of_earlier_groups(store: Store) -> None:
    assert await change(store, put("old", tags=("t",)))
    groups: list[list[Put | Remove]] = [
        [put("ann", b"1")],
        [put("ann", b"2"), put("bob", b"lost")],
        [Remove(key("ann"), 0)],
        [Remove(key("ann"))],
        [put("ann", b"3", tags=("t",)), put("cid", tags=("t",))],
        [Remove(key("cid")), Remove(key("old"))],
        [put("old", b"again", tags=("u",))],
        [put("old", b"last", ANY, tags=("t",), order=-1), put("ann", b"4", 1 << 40)],
        [put("old", b"last", ANY, tags=("t", "u"), order=-1)],
        [],
    ]
    answers = await made(store, groups)
    assert answers == [True, False, False, True, True, True, True, False, True, True]
    assert (await kept(store, "ann")).body == b"3"
    assert (await kept(store, "old")).body == b"last"
    assert await names(store, "t") == ["old", "ann"]
    assert await names(store, "u") == ["old"]
    assert [await got(store, name) for name in ("bob", "cid")] == [None, None]


async def test_a_thousand_groups_in_one_call(store: Store) -> None:
    groups = [[put(f"n{number % 700:03}", b"%d" % number, tags=("t",), order=number)] for number in range(1_000)]
    assert await made(store, groups) == [number < 700 for number in range(1_000)]
    found = await store.documents.find(ACME, "user", "t", NOW, limit=2_000)
    assert [document.body for document in found] == [b"%d" % number for number in range(700)]
    assert len({document.version for document in found}) == 700
    groups = [[put("n000", b"%d" % number, ANY, tags=("t",))] for number in range(1_000)]
    assert await made(store, groups) == [True] * 1_000
    assert (await kept(store, "n000")).body == b"999"
    assert await store.documents.change([], NOW) == []


# --- invalid changes ---

WRONG: dict[str, list[Put | Remove | Unchanged]] = {
    "twice": [put("ann"), Remove(key("ann"))],
    "nothing is left unchanged": [Unchanged(key("ann"), 0)],
    "anything is left unchanged": [Unchanged(key("ann"), ANY)],
    "too long": [put("x" * (NAME_BYTES_MAX + 1))],
    "too long in bytes": [put("é" * (NAME_BYTES_MAX // 2 + 1))],
    "no text": [put("\ud800")],
    "a tag that is no text": [put("ann", tags=("\ud800",))],
    "a tag twice": [put("ann", tags=("t", "t"))],
    "order": [put("ann", order=1 << 63)],
    "until": [put("ann", until=1 << 63)],
}


@pytest.mark.parametrize("name", WRONG)
async def test_contradictory_changes_are_rejected_before_anything_is_done(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        await store.documents.change([[put("bob")], WRONG[name]], NOW)
    assert await got(store, "bob") is None
    assert await change(store, put("bob")), "it goes on"


async def test_wipe_keeps_existing_documents(store: Store) -> None:
    assert await change(store, put("ann", tags=("t",)), put("bob", tags=("t",)))
    assert await change(store, Remove(key("bob")))
    before = await kept(store, "ann")
    await store.documents.wipe()
    assert await kept(store, "ann") == before
    assert await names(store, "t") == ["ann"]
    assert await change(store, put("bob")), "it goes on"


# --- expiry ---


async def test_an_expired_document_is_not_returned(store: Store) -> None:
    assert await change(store, put("ann", b"1", tags=("t",), until=NOW + SECOND), put("bob", tags=("t",)))
    first = await kept(store, "ann", NOW + SECOND - 1)
    assert await names(store, "t", NOW + SECOND - 1) == ["ann", "bob"]
    assert await got(store, "ann", NOW + SECOND) is None
    assert await names(store, "t", NOW + SECOND) == ["bob"]
    assert await names(store, "t", NOW + SECOND, limit=1) == ["bob"]
    assert not await change(store, put("ann", b"2", first.version), now=NOW + SECOND)
    assert not await change(store, Remove(key("ann"), first.version), now=NOW + SECOND)
    assert await change(store, put("ann", b"2", tags=("t", "u")), now=NOW + SECOND)
    second = await kept(store, "ann", NOW + SECOND)
    assert (second.body, second.until) == (b"2", None)
    assert second.version > first.version
    assert await names(store, "t", NOW + SECOND) == ["ann", "bob"]


async def test_a_document_put_already_expired_does_not_exist_for_the_next_group(store: Store) -> None:
    ended, former = put("ann", b"1", until=NOW), put("ann", b"2", until=NOW + 1)
    assert await made(store, [[ended], [ended], [former], [former]]) == [True, True, True, False]
    assert (await kept(store, "ann")).body == b"2"
    assert await got(store, "ann", NOW + 1) is None


async def test_expired_documents_are_deleted(store: Store) -> None:
    """Looked at from before its end, which nobody does but this test."""
    groups = [[put(f"n{number}", tags=("t",), until=NOW + number)] for number in range(2_500)]
    assert all(await made(store, groups))
    assert await change(store, put("stays", tags=("t",)))
    await tend(store, NOW + 2_000)
    before = NOW - 1
    assert await got(store, "n2000", before) is None
    assert (await kept(store, "n2001", before)).until == NOW + 2_001
    found = await names(store, "t", before, limit=5_000)
    assert sorted(found) == sorted(["stays", *(f"n{number}" for number in range(2_001, 2_500))])
    await tend(store, NOW + 10 * SECOND)
    assert await names(store, "t", before) == ["stays"]


# --- concurrency ---


async def test_one_of_several_concurrent_changes_with_the_same_expected_version_wins(store: Store) -> None:
    for turn in range(20):
        expected = 0 if turn % 2 == 0 else (await kept(store, f"n{turn - 1}")).version
        name = f"n{turn - turn % 2}"
        answers = await asyncio.gather(*(change(store, put(name, b"%d" % each, expected)) for each in range(8)))
        assert sum(answers) == 1
        assert (await kept(store, name)).body == b"%d" % answers.index(True)
