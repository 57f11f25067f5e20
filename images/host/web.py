"""Downloads files from web servers, such as package indexes and releases."""

import os
import ssl
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter

CONNECTIONS = 16
"""Connections to one server at once."""
_CHUNK = 1 << 20


def session() -> requests.Session:
    """Return a session that reuses connections, and trusts the certificates that Python trusts.

    A certificate file that SSL_CERT_FILE or PIP_CERT names comes first. By itself, requests would
    trust the certificates that it ships.
    """
    web = requests.Session()
    # The file itself, and not a compressed form.
    web.headers["Accept-Encoding"] = "identity"
    web.mount("https://", HTTPAdapter(pool_maxsize=CONNECTIONS))
    web.mount("http://", HTTPAdapter(pool_maxsize=CONNECTIONS))
    chosen_file = os.environ.get("SSL_CERT_FILE") or os.environ.get("PIP_CERT")
    defaults = ssl.get_default_verify_paths()
    web.verify = chosen_file or defaults.cafile or defaults.capath or True
    return web


def download(url: str, target: Path, *, patience: float) -> None:
    """Download a URL to a file.

    `patience`: seconds to wait for the answer, and for each further part of it. Raises OSError,
    also if the connection breaks off; then a part of the file is left.
    """
    with (
        session() as web,
        web.get(url, timeout=patience, stream=True) as answer,
        target.open("wb") as file,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_content(_CHUNK):
            file.write(chunk)
