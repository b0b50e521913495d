"""What a node logs of errors that the event loop reports and no task handles."""

import asyncio

import pytest

from tidings.node.serve import report_loop_error

CLOSED = "unable to perform operation on <TCPTransport closed=True reading=False 0x55>; the handler is closed"


def test_tls_bytes_after_the_end_of_their_connection_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(report_loop_error)
    loop.call_exception_handler({"message": "Fatal error on SSL protocol", "exception": RuntimeError(CLOSED)})
    assert [record.levelname for record in caplog.records if record.levelno > 10] == []
    loop.close()


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Fatal error on SSL protocol", RuntimeError("another one")),
        ("Exception in callback", RuntimeError(CLOSED)),
        ("Fatal error on SSL protocol", KeyError("the handler is closed")),
        ("Task exception was never retrieved", None),
    ],
)
def test_any_other_error_is_logged(caplog: pytest.LogCaptureFixture, message: str, error: Exception | None) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(report_loop_error)
    loop.call_exception_handler({"message": message, "exception": error})
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert message in record.getMessage()
    loop.close()
