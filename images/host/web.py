"""Downloads files from web servers, such as package indexes and releases."""

import os
import ssl
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from images.errors import root_cause

CONNECTIONS = 16
"""Connections to one server at once."""
_CHUNK = 1 << 20
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables that name a file of certificates, the first that counts first."""


class _Adapter(HTTPAdapter):
    """Sends requests with certificates of our choice.

    In a session's `verify`, requests would replace them by those that REQUESTS_CA_BUNDLE names.
    """

    def __init__(self, certificates: str | bool) -> None:
        self._certificates = certificates
        super().__init__(pool_maxsize=CONNECTIONS)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        return super().send(request, stream, timeout, self._certificates, cert, proxies)


def session(login: AuthBase | None = None) -> requests.Session:
    """Return a session that reuses connections, and trusts the certificates that Python trusts.

    A certificate file that an environment variable names (SSL_CERT_FILE and others) comes first, as
    for uv. By itself, the library requests would trust the certificates that it ships. `login` adds
    a user and password, or a token, to what is sent; None: the login that ~/.netrc has for the
    server.
    """
    web = requests.Session()
    web.auth = login
    # Otherwise a server may compress a file for the transfer.
    web.headers["Accept-Encoding"] = "identity"

    chosen_files = [os.environ[name] for name in _CERTIFICATE_VARIABLES if os.environ.get(name)]
    defaults = ssl.get_default_verify_paths()
    certificates = [*chosen_files, defaults.cafile, defaults.capath]
    # True stands for the certificates that requests ships, which are used if there are no others.
    first = next((place for place in certificates if place), True)
    web.mount("https://", _Adapter(first))
    web.mount("http://", _Adapter(first))
    return web


def describe_failure(error: Exception) -> str:
    """Return why a download failed: `HTTP 404`, or the innermost of the errors.

    The errors of requests have the address in their text, and that may have a password or a token.
    """
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return root_cause(error)


def download(url: str, target: Path, *, patience: float, login: AuthBase | None = None) -> None:
    """Download a URL to the file `target`, which is replaced if it exists.

    `patience`: seconds to wait for the answer, and for each further part of it. `login` adds a
    login to the request (see `session`). Raises OSError if the server can't be reached, answers
    with an error, or breaks off; then a part of the file may be left.
    """
    with (
        session(login) as web,
        web.get(url, timeout=patience, stream=True) as answer,
        target.open("wb") as file,
    ):
        answer.raise_for_status()
        for chunk in answer.iter_content(_CHUNK):
            file.write(chunk)
