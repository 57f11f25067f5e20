"""A TCP port for processes that are about to be started, and told it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_PORTS = range(10_000, 30_000)
"""Below those that Linux gives to who asks for any (from 32768), so none is taken between asking and listening."""


def free_port() -> int:
    """One that nobody on this machine listens on. Processes that ask at the same time get different ones."""
    own = os.getpid()
    for turn in range(len(_PORTS)):
        port = _PORTS[(own + turn) % len(_PORTS)]
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise OSError(f"all ports from {_PORTS[0]} to {_PORTS[-1]} are taken")
