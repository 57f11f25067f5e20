"""How records leave a container: signed with a key of this run, which the suite alone has.

Whatever else runs there can write to the suite's standard output (/proc/1/fd/1), and may be of the same user. It can't
sign: the key comes as the first line of standard input, before anything of the image runs beside the suite, and the
suite's memory and files are closed to others of its user (prctl(2), PR_SET_DUMPABLE; ptrace(2), "Ptrace access mode").
"""

import ctypes
import hmac
import os
import secrets
import sys

_PR_SET_DUMPABLE = 4
_DIGITS = 64


def new_key() -> str:
    """A key for one container."""
    return secrets.token_hex(32)


def receive_key() -> str:
    """The key from standard input, which is empty afterwards; closes this process to others. Raises OSError."""
    key = sys.stdin.readline().strip()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if not key or ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("the suite got no key on its standard input, or can't keep it from others")
    return key


def signed(key: str, text: str) -> str:
    """The line that is printed for a record."""
    return f"{_signature(key, text)} {text}"


def accepted(key: str, line: str) -> str | None:
    """The text of a line that was signed with this key; None for any other line."""
    signature, _, text = line.partition(" ")
    if len(signature) != _DIGITS:  # of millions of lines, most
        return None
    return text if hmac.compare_digest(signature.encode(), _signature(key, text).encode()) else None


def _signature(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
