"""What noxfile.py does between a person's terminal and the product."""

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]

PROGRAM_THAT_SETS_THE_TERMINAL = """
import termios
termios.tcsetattr(0, termios.TCSANOW, termios.tcgetattr(0))
print('the terminal is set')
"""
"""What apt-get and Debian's debconf do. In a background process it would be stopped for that."""
PROGRAM_THAT_TIDIES_UP = """
import time
try:
    print('begun', flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print('tidied up')
    raise SystemExit(130) from None
"""
CONTROL_C = b"\x03"
SECONDS_TO_END = 120


def output_on_a_terminal(program: str, keys_after: str = "", keys: bytes = b"") -> str:
    """Return what a person sees if noxfile calls a Python program on a terminal.

    `keys` are pressed as soon as the text `keys_after` is to be seen.
    """
    call = f"noxfile._call([sys.executable, '-c', {program!r}])"
    caller = f"import noxfile, sys; print('ended with', {call})"
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", caller])

    output = b""
    deadline = time.monotonic() + SECONDS_TO_END
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                output += os.read(terminal, 4096)
            except OSError:  # on Linux, the end of a terminal
                return output.decode()
            if keys and keys_after.encode() in output:
                os.write(terminal, keys)
                keys = b""
        return output.decode() + "\nIT NEVER ENDED"
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_a_program_that_noxfile_calls_may_set_the_terminal() -> None:
    output = output_on_a_terminal(PROGRAM_THAT_SETS_THE_TERMINAL)

    assert "the terminal is set" in output
    assert "ended with 0" in output


def test_noxfile_waits_for_a_program_that_is_interrupted_by_the_keyboard() -> None:
    output = output_on_a_terminal(PROGRAM_THAT_TIDIES_UP, keys_after="begun", keys=CONTROL_C)

    assert "tidied up" in output
    assert "ended with 130" in output
