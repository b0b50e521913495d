"""Runs a command and ends it as soon as standard input closes: no server outlives the process that started it.

The system closes the pipe also when that is killed. The first line on standard output is the command's process id;
what the command says goes to standard error.
"""

import os
import subprocess
import sys
import threading


def end_with_input(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    child.kill()


def main() -> None:
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2)
    os.write(1, f"{child.pid}\n".encode())
    threading.Thread(target=end_with_input, args=(child,), daemon=True).start()
    os._exit(child.wait() & 0xFF)


if __name__ == "__main__":
    main()
