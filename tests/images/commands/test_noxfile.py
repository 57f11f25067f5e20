"""What noxfile.py does between a person's terminal and the product."""

import os
import pty
import select
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[3]

SETS_THE_TERMINAL = "import termios; termios.tcsetattr(0, termios.TCSANOW, termios.tcgetattr(0)); print('it is set')"
"""What apt-get does, and Debian's debconf."""
TIDIES_UP = """
import time
try:
    print('begun', flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print('tidied up')
    raise SystemExit(130) from None
"""


def _on_a_terminal(code: str, until: str = "", keys: bytes = b"") -> str:
    """What a person sees of noxfile's call of a Python program; `keys` are pressed as soon as `until` is to be read."""
    program = (
        f"import noxfile, sys; print('ended with', noxfile._call([sys.executable, '-c', {code!r}]))"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-c", program])
    seen = b""
    deadline = time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                seen += os.read(terminal, 4096)
            except OSError:  # so a terminal ends on Linux
                return seen.decode()
            if keys and until.encode() in seen:
                os.write(terminal, keys)
                keys = b""
        return seen.decode() + "\nIT NEVER ENDED"
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def test_what_it_calls_may_set_the_terminal() -> None:
    seen = _on_a_terminal(SETS_THE_TERMINAL)
    assert "it is set" in seen
    assert "ended with 0" in seen


def test_an_interrupt_from_the_keyboard_is_waited_for() -> None:
    seen = _on_a_terminal(TIDIES_UP, until="begun", keys=b"\x03")
    assert "tidied up" in seen
    assert "ended with 130" in seen
