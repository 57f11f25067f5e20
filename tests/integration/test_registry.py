"""Bases from a registry: by tag, by pinned digest, and how long it takes to notice that none answers.

The registry is a real one in the little it must do: it serves one image over the distribution protocol.
"""

import gzip
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from images.config.names import Minor
from images.context.base_images import PINS_FILE, acquire, load_pins, pin
from images.context.hosting import HostSettings
from images.context.labels import Origin
from images.engine import Engine
from images.engine.archive import pack
from images.errors import UserError
from images.planning.image import Base

pytestmark = pytest.mark.engine

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def image(content: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Manifest and blobs of an image of one file."""
    layer = b"".join(pack({"file": content}))
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/file"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
    ).encode()
    blob = gzip.compress(layer, mtime=0)
    kinds = {"config": "container.image.v1+json", "layer": "image.rootfs.diff.tar.gzip"}
    described = {
        kind: {"mediaType": f"application/vnd.docker.{kinds[kind]}", "size": len(data), "digest": digest(data)}
        for kind, data in (("config", config), ("layer", blob))
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": described["config"],
        "layers": [described["layer"]],
    }
    return json.dumps(manifest).encode(), {digest(config): config, digest(blob): blob}


@pytest.fixture
def registry(engine: Engine) -> Iterator[tuple[str, str]]:
    """A reference that a registry on this machine serves, and its digest."""
    if not engine.facts.local:
        pytest.fail("this test serves a registry to the engine: run it beside the engine")
    manifest, blobs = image(str(time.time_ns()).encode())

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name http.server asks for
            last = self.path.rpartition("/")[2]
            if self.path == "/v2/":
                self.answer(200, b"{}", "application/json")
            elif self.path in ("/v2/base/manifests/slim", f"/v2/base/manifests/{digest(manifest)}"):
                self.answer(200, manifest, MANIFEST)
            elif last in blobs:
                self.answer(200, blobs[last], "application/octet-stream")
            else:
                problem = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
                self.answer(404, json.dumps(problem).encode(), "application/json")

        do_HEAD = do_GET  # noqa: N815

        def answer(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", digest(data))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        reference = f"127.0.0.1:{server.server_port}/base:slim"
        yield reference, digest(manifest)
        server.shutdown()
        engine.remove(reference, force=True)
        engine.remove(f"{reference.rpartition(':')[0]}@{digest(manifest)}", force=True)


def base(reference: str) -> Base:
    return Base(key="test", reference=reference, suite=None, python=Minor(3, 11), glibc=Minor(2, 36))


def test_by_tag_then_pinned_then_by_digest(engine: Engine, registry: tuple[str, str]) -> None:
    reference, served = registry
    said: list[str] = []
    assert engine.registry_digest(reference) == served

    by_tag = acquire(engine, base(reference), pinned={}, host=HostSettings(), on_progress=said.append)
    assert (by_tag.reference, by_tag.digest, by_tag.origin) == (reference, served, Origin.TAG)
    assert by_tag.python is None
    assert "python -m tools.pin" in said[0]
    assert acquire(engine, base(reference), pinned={}, host=HostSettings(), on_progress=said.append) == by_tag
    assert len(said) == 1  # it was there

    pinned = load_pins(pin(engine, [base(reference)])[PINS_FILE].decode())
    assert pinned == {reference: served}
    engine.remove(reference, force=True)
    by_digest = acquire(engine, base(reference), pinned=pinned, host=HostSettings(), on_progress=said.append)
    assert by_digest.origin is Origin.DIGEST
    assert by_digest.reference == f"{reference.rpartition(':')[0]}@{served}"
    built = engine.build({"Dockerfile": f"FROM {by_digest.reference}\nENV A=b\n".encode()}, None)
    assert engine.inspect(built.image_id).env["A"] == "b"
    engine.remove(built.image_id, force=True)


def test_a_name_that_the_registry_does_not_know_is_an_error_and_not_a_missing_registry(
    engine: Engine, registry: tuple[str, str]
) -> None:
    with pytest.raises(UserError, match="refuses"):
        engine.registry_digest(registry[0].replace("slim", "nosuch"))


def test_a_registry_that_does_not_answer_costs_a_bounded_time(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        started = time.monotonic()
        assert engine.registry_digest(f"127.0.0.1:{mute.getsockname()[1]}/base:slim", timeout=2) is None
        assert time.monotonic() - started < 100, "it waited for the SDK's own 120 s"
    assert engine.registry_digest("127.0.0.1:1/base:slim") is None
