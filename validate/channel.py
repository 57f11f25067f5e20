"""Signs the records that leave a container, with a key of this run that only the suite has.

Other processes of the container can write to the suite's standard output (/proc/1/fd/1), and may
belong to the same user. They cannot sign: the key comes as the first line of standard input, before
anything of the image runs beside the suite, and the suite's memory and files are closed to other
processes of its user (prctl(2), PR_SET_DUMPABLE; ptrace(2), "Ptrace access mode").
"""

import ctypes
import hmac
import os
import secrets
import sys

_PR_SET_DUMPABLE = 4
"""prctl(2). With the value 0, other processes of this user can't read this process's memory."""
_DIGITS = 64
"""The length of a signature: SHA-256 in hexadecimal digits."""


def new_key() -> str:
    """Return a random key, in hexadecimal digits, for one container."""
    return secrets.token_hex(32)


def receive_key() -> str:
    """Return the key from the first line of standard input, and close both ways to it.

    Other processes of this user can then read it neither from standard input, which is empty
    afterwards, nor from this process's memory. Raises OSError if there is no key, or the kernel
    refuses.
    """
    key = sys.stdin.readline().strip()
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    # prctl returns 0 if it worked. Its last three arguments have no meaning here.
    if not key or ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the suite got no key on its standard input, or can't keep it from others")
    return key


def sign(key: str, text: str) -> str:
    """Return the line that the suite prints for a record: its signature and its text."""
    return f"{_signature(key, text)} {text}"


def verify(key: str, line: str) -> str | None:
    """Return the text of a line that was signed with this key; None for any other line."""
    signature, _, text = line.partition(" ")
    # Programs may print millions of other lines: most are refused without computing a signature.
    if len(signature) != _DIGITS:
        return None
    is_ours = hmac.compare_digest(signature.encode(), _signature(key, text).encode())
    return text if is_ours else None


def _signature(key: str, text: str) -> str:
    """Return the HMAC of a text in hexadecimal digits."""
    return hmac.new(key.encode(), text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()
