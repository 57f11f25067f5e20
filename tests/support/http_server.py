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
"""Status, headers, body."""
Answer = Callable[[str, str, dict[str, str], bytes], Reply | None]
"""Method, path, headers, body -> reply; None: the connection drops without one."""


@dataclass
class Server:
    """A server that answers by `answer`, and records the requests: method, path, headers."""

    host: str = ""
    answer: Answer = lambda *_: (404, {}, b"")
    takes: Callable[[str, str], int | None] = lambda *_: None
    """Method, path -> after how many bytes of a request's body the connection breaks; None: never.
    `answer` gets these bytes."""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    unencrypted: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Those of them that came over plain HTTP."""

    def count(self, method: str, path: str = "") -> int:
        """Return how many requests of a method had `path` in theirs."""
        return sum(
            seen_method == method and path in seen_path for seen_method, seen_path, _ in self.seen
        )


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Yield a server that runs until the end of the context.

    A `Content-Length` among an answer's headers stays as it is, so that a body can be shorter. With
    `tls`, the server speaks HTTPS and HTTP on its one port, as a proxy does on two.
    """
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Sends an answer in one piece. A body that follows its headers would wait 40 ms until the
        # client acknowledges these.
        wbufsize = -1
        disable_nagle_algorithm = True

        def setup(self) -> None:
            if tls and self.request.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE:
                self.request = tls.wrap_socket(self.request, server_side=True)
            super().setup()

        def reply(self) -> None:
            breaks_after = server.takes(self.command, self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length if breaks_after is None else breaks_after)
            headers = dict(self.headers.items())
            server.seen.append((self.command, self.path, headers))
            if not isinstance(self.request, ssl.SSLSocket):
                server.unencrypted.append((self.command, self.path, headers))
            answer = server.answer(self.command, self.path, headers, body)
            if answer is None or breaks_after is not None:
                self.close_connection = True
                return
            status, more, content = answer
            self.send_response(status)
            for key, value in {"Content-Length": str(len(content)), **more}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                # The client may have been interrupted.
                with suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(content)
                    self.wfile.flush()
            self.close_connection = "Content-Length" in more

        do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.host = f"127.0.0.1:{listening.server_address[1]}"
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
