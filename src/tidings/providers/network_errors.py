"""Errors of the network in plain words, without the texts of the library that met them."""

import os
import re
import socket

_ERRNO = re.compile(r"\[Errno -?[0-9]+\] ")


def not_connected(host: str, port: int, error: Exception) -> str:
    """Why there is no connection: `no connection to 127.0.0.1: connection refused (port 9192)`."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        text = str(getattr(error, "strerror", None) or error)
        return f"no connection to {host}: {_ERRNO.sub('', text)}"
    text = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    text = _ERRNO.sub("", text)
    return f"no connection to {host}: {text[:1].lower()}{text[1:]} (port {port})"
