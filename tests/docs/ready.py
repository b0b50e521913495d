"""`python ready.py URL`: wait until a server answers there with success, for seconds at most."""

import sys
import threading
import urllib.error
import urllib.request

POLL_S = 0.03
POLLS_MAX = 500


def main(url: str) -> int:
    pause = threading.Event()
    for _ in range(POLLS_MAX):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return 0
        except (urllib.error.URLError, ConnectionError):
            pause.wait(POLL_S)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
