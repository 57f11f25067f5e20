"""Requests to web servers: indexes and releases."""

import os
import ssl
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

CONNECTIONS = 16
"""At once, to one server."""
_CHUNK = 1 << 20


def session() -> requests.Session:
    """Return a session that keeps its connections, and believes the certificates that Python itself does."""
    web = requests.Session()
    web.headers["Accept-Encoding"] = "identity"  # the file itself, and not a compressed form
    web.mount("https://", HTTPAdapter(pool_maxsize=CONNECTIONS))
    web.mount("http://", HTTPAdapter(pool_maxsize=CONNECTIONS))
    trusted = ssl.get_default_verify_paths()
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    web.verify = named or trusted.cafile or trusted.capath or True
    return web


def download(url: str, target: Path, *, patience: float) -> None:
    """Fetch a file whole. `patience`: seconds between two chunks. Raises OSError, also where it breaks off."""
    with (
        session() as web,
        web.get(url, timeout=patience, stream=True) as answer,
        target.open("wb") as file,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_content(_CHUNK):
            file.write(chunk)
