"""An HTTP server on loopback that answers what a test says."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TLS_HANDSHAKE = b"\x16"
"""The first byte of a connection that speaks TLS."""
Reply = tuple[int, dict[str, str], bytes]
Answer = Callable[[str, str, dict[str, str], bytes], Reply | None]
"""Method, path, headers, body -> status, headers, body. None drops the connection without an answer."""


@dataclass
class Server:
    """Answers what `answer` says, and records the requests: method, path, headers."""

    host: str = ""
    answer: Answer = lambda *_: (404, {}, b"")
    takes: Callable[[str, str], int | None] = lambda *_: None
    """Method, path -> after how many bytes of its body the connection breaks; None: never. `answer` gets those."""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    unencrypted: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Those of them that came over plain HTTP."""

    def count(self, method: str, path: str = "") -> int:
        """Requests of a method, with `path` in theirs."""
        return sum(asked == method and path in where for asked, where, _ in self.seen)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server that runs meanwhile. A `Content-Length` among an answer's headers is kept: bodies can break off.

    With `tls`, it speaks HTTPS and HTTP on its one port, as a proxy does on two.
    """
    found = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer in one piece: a body sent after its headers waits 40 ms until the client acknowledges those.
        wbufsize = -1
        disable_nagle_algorithm = True

        def setup(self) -> None:
            if tls and self.request.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def reply(self) -> None:
            cut = found.takes(self.command, self.path)
            body = self.rfile.read(
                int(self.headers.get("Content-Length") or 0) if cut is None else cut
            )
            headers = dict(self.headers.items())
            found.seen.append((self.command, self.path, headers))
            if not isinstance(self.request, ssl.SSLSocket):
                found.unencrypted.append((self.command, self.path, headers))
            answer = found.answer(self.command, self.path, headers, body)
            if answer is None or cut is not None:
                self.close_connection = True
                return
            status, more, content = answer
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **more}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                with suppress(
                    BrokenPipeError, ConnectionResetError
                ):  # a client that was interrupted
                    self.wfile.write(content)
                    self.wfile.flush()
            self.close_connection = "Content-Length" in more

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.host = f"127.0.0.1:{listening.server_address[1]}"
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield found
    finally:
        listening.shutdown()
        listening.server_close()
