"""Cutting a body into lines: the same however it arrives, and never more kept than a line may have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.edges.http.ndjson import Lines


def cut(body: bytes, sizes: list[int], line_bytes_max: int) -> list[bytes | None]:
    """The lines of a body that arrives in chunks of these sizes, and the rest in one."""
    lines = Lines(line_bytes_max)
    found: list[bytes | None] = []
    for size in sizes:
        found += lines.feed(body[:size])
        body = body[size:]
    return found + lines.feed(body) + lines.finish()


@given(
    st.binary(max_size=200).map(lambda body: body.replace(b"a", b"\n")),
    st.lists(st.integers(0, 20)),
    st.integers(1, 30),
)
def test_chunks_do_not_matter(body: bytes, sizes: list[int], line_bytes_max: int) -> None:
    whole = body.split(b"\n")
    if not whole[-1]:
        whole.pop()
    expected = [line if len(line) <= line_bytes_max else None for line in whole]
    assert cut(body, sizes, line_bytes_max) == expected


@pytest.mark.parametrize("chunk", [1, 10, 1000])
def test_a_long_line_is_not_kept(chunk: int) -> None:
    lines = Lines(100)
    for _ in range(10_000 // chunk):
        assert lines.feed(b"x" * chunk) == []
        assert sum(map(len, lines._parts)) <= 100
    assert lines.feed(b"\ngood\n") == [None, b"good"]
