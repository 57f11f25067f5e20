"""A real private package index: pypiserver over TLS, with a password, on loopback."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pypiserver  # type: ignore[import-untyped]
import trustme


class _Server(ThreadingMixIn, WSGIServer):
    """A WSGI server that answers several clients at once."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    """Answers without a line for each request."""

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""


@contextmanager
def pypi_server(wheels: Path, user: str, password: str, bundle: Path) -> Iterator[str]:
    """Serve the wheels of a folder, and yield the index's address.

    `bundle`: this file gets the certificate authority, before all that the machine trusts.
    """
    authority = trustme.CA()
    machine = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    bundle.write_bytes(authority.cert_pem.bytes() + machine.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    app = pypiserver.app(
        roots=[wheels],
        authenticate=["list", "download", "update"],
        auther=lambda *login: login == (user, password),
        disable_fallback=True,
    )
    server = make_server("127.0.0.1", 0, app, server_class=_Server, handler_class=_Silent)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"https://localhost:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
