"""Pushes into a registry that breaks: what is sent once, what is sent again, and what never.

As a program, this module makes the push that `test_a_killed_push_...` kills.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from images.engine import Engine, ImageInfo
from images.engine.buildkit import BuildEvent, StepProgress
from images.engine.exported import ImagePart
from images.engine.identity import ImageIdentity
from images.errors import UserError
from images.host.hashing import oci_digest
from images.publish import compression, push
from images.publish.compression import MEDIA_TYPE, SpooledBlob
from images.registry import client as registry_client
from images.registry.client import Registry
from images.registry.distribution import Manifest
from images.registry.reference import Repository
from tests.support.blob_registry import BlobRegistry
from tests.support.checkout import ROOT
from tests.support.http_server import Reply, Server, serving

REAL_WAIT = registry_client.wait
AT_ONCE = 4
"""How many layers are sent at the same time."""
SIZE_OF_NOISE = 3 << 17
"""More than what is sent at a time."""


def layer_of_noise(seed: int, size: int = SIZE_OF_NOISE) -> bytes:
    """The tar of a layer, which compression makes hardly smaller."""
    return random.Random(seed).randbytes(size) + bytes(1024)


Parts = Callable[[ImageInfo, Collection[str]], Iterator[ImagePart]]


@dataclass
class EngineWithImage:
    """An engine with one image, in the little that a push asks of it."""

    layers: Sequence[bytes] = tuple(layer_of_noise(seed) for seed in range(4))
    exports_without_names: bool = False
    """Whether it gives all layers, and does not say which is which, as engines before 25."""
    replaced_parts: Parts | None = None
    """What it gives instead of its own parts."""
    requested: tuple[str, ...] | None = None
    """The layers that the last push asked for; None if it asked for nothing."""

    @property
    def config(self) -> bytes:
        diff_ids = [oci_digest(layer) for layer in self.layers]
        return json.dumps({"rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()

    @property
    def info(self) -> ImageInfo:
        fields: dict[str, Any] = dict.fromkeys(ImageInfo.__dataclass_fields__, "")
        fields["identity"] = ImageIdentity(
            configuration=oci_digest(self.config), platform="linux/amd64"
        )
        fields["layers"] = tuple(oci_digest(layer) for layer in self.layers)
        fields["size"] = sum(len(layer) for layer in self.layers)
        return ImageInfo(**fields)

    def parts(self, info: ImageInfo, requested: Collection[str]) -> Iterator[ImagePart]:
        self.requested = tuple(requested)
        own_parts = self.replaced_parts or self.own_parts
        yield from own_parts(info, requested)

    def own_parts(self, _info: ImageInfo, requested: Collection[str]) -> Iterator[ImagePart]:
        """The configuration, and then the requested layers."""
        given = []
        for layer in self.layers:
            if self.exports_without_names or oci_digest(layer) in requested:
                given.append(layer)
        yield ImagePart(digest=oci_digest(self.config), chunks=iter([self.config]))
        for layer in given:
            digest = "" if self.exports_without_names else oci_digest(layer)
            yield ImagePart(digest=digest, chunks=iter([layer]))


@dataclass
class Pusher:
    """A machine that pushes images to a registry of the test's own."""

    server: Server
    registry: BlobRegistry
    cache: Path
    sent: int = 0
    """Bytes of layers that the last push sent."""

    def push(
        self,
        engine: EngineWithImage,
        *,
        on_event: Callable[[BuildEvent], None] = lambda _event: None,
    ) -> Manifest:
        """Push the image of an engine to the repository `staging`."""
        engine.requested = None
        repository = Repository(self.server.host, "staging")
        with Registry(repository, credentials=lambda _: None) as target:
            manifest, self.sent = push.push(
                cast("Engine", engine), engine.info, target, self.cache, on_event=on_event
            )
            return manifest


@pytest.fixture
def pusher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Pusher]:
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    with serving() as server:
        registry = BlobRegistry()
        server.answer = registry.answer
        yield Pusher(server, registry, tmp_path / "cache")


# --- what is sent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exports_without_names", [False, True])
def test_the_manifest_has_the_image_id_and_nothing_is_tagged(
    pusher: Pusher, exports_without_names: bool
) -> None:
    engine = EngineWithImage(exports_without_names=exports_without_names)

    manifest = pusher.push(engine)

    assert manifest.config.digest == engine.info.digest
    assert [layer.media_type for layer in manifest.layers] == [MEDIA_TYPE] * len(engine.layers)
    assert pusher.registry.tags("staging") == set()


def test_an_image_that_the_registry_has_is_neither_read_nor_sent(pusher: Pusher) -> None:
    engine = EngineWithImage()
    first_manifest = pusher.push(engine)
    received = pusher.registry.received

    second_manifest = pusher.push(engine)

    assert second_manifest == first_manifest
    assert engine.requested is None
    assert pusher.registry.received == received
    assert pusher.sent == 0


def test_another_machine_compresses_the_layers_anew_and_sends_nothing(
    pusher: Pusher, tmp_path: Path
) -> None:
    """It can't know which blobs they are compressed to."""
    engine = EngineWithImage()
    first_manifest = pusher.push(engine)
    received = pusher.registry.received

    pusher.cache = tmp_path / "another machine"
    second_manifest = pusher.push(engine)

    assert second_manifest == first_manifest
    assert engine.requested == engine.info.layers
    assert pusher.registry.received == received
    assert pusher.sent == 0


def test_a_layer_that_an_image_repeats_is_sent_once(pusher: Pusher) -> None:
    first, second = layer_of_noise(1), layer_of_noise(2)
    engine = EngineWithImage(layers=(first, second, first))

    manifest = pusher.push(engine)

    assert len(manifest.layers) == 3
    assert manifest.layers[0] == manifest.layers[2]
    assert engine.requested == engine.info.layers[:2]
    layers_and_configuration = 2 + 1
    assert pusher.server.count("PATCH") == layers_and_configuration


def test_a_record_that_cannot_be_read_counts_as_none(pusher: Pusher) -> None:
    engine = EngineWithImage(layers=[layer_of_noise(1)])
    pusher.push(engine)
    (record,) = pusher.cache.rglob("*.json")
    record.write_text("[]")

    pusher.push(engine)

    assert engine.requested == engine.info.layers


# --- threads --------------------------------------------------------------------------------------


def test_five_layers_lie_on_the_disk_at_most(
    pusher: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly the registry takes them: four that are sent, and one that is compressed."""
    open_blobs: set[SpooledBlob] = set()
    counts_of_open_blobs: list[int] = []
    engine_is_done = threading.Event()

    class CountedBlob(SpooledBlob):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            open_blobs.add(self)
            counts_of_open_blobs.append(len(open_blobs))

        def close(self) -> None:
            super().close()
            open_blobs.discard(self)

    def take_no_layer_before_the_engine_is_done(method: str, _path: str) -> bool:
        if method == "PATCH":
            # If all is right, the engine cannot have given all layers: then this waits in vain,
            # once.
            engine_is_done.wait(2)
            engine_is_done.set()
        return True

    def parts(info: ImageInfo, requested: Collection[str]) -> Iterator[ImagePart]:
        yield from engine.own_parts(info, requested)
        engine_is_done.set()

    monkeypatch.setattr(compression, "SpooledBlob", CountedBlob)
    pusher.registry.before = take_no_layer_before_the_engine_is_done
    engine = EngineWithImage(layers=[layer_of_noise(seed, 1 << 14) for seed in range(9)])
    engine.replaced_parts = parts

    pusher.push(engine)

    assert 1 <= max(counts_of_open_blobs) <= AT_ONCE + 1
    assert not open_blobs


@pytest.mark.parametrize(
    ("is_interrupted", "error", "message", "uploads"),
    [
        pytest.param(False, UserError, "HTTP 403", 2, id="the other upload is refused"),
        pytest.param(True, KeyboardInterrupt, None, 1, id="an interrupt"),
    ],
)
def test_the_end_of_a_push_waits_for_no_pause_of_another_upload(
    pusher: Pusher,
    monkeypatch: pytest.MonkeyPatch,
    is_interrupted: bool,
    error: type[BaseException],
    message: str | None,
    uploads: int,
) -> None:
    monkeypatch.setattr(registry_client, "wait", REAL_WAIT)
    first_upload_pauses = threading.Event()

    def ask_the_first_upload_to_wait(method: str, _path: str) -> Reply | bool:
        if method != "PATCH":
            return True
        if first_upload_pauses.is_set():
            return 403, {}, b""
        first_upload_pauses.set()
        return 429, {"Retry-After": "60"}, b""

    def parts(info: ImageInfo, requested: Collection[str]) -> Iterator[ImagePart]:
        config, first_layer, second_layer = engine.own_parts(info, requested)
        yield config
        yield first_layer
        first_upload_pauses.wait()
        if is_interrupted:
            raise KeyboardInterrupt
        yield second_layer

    pusher.registry.before = ask_the_first_upload_to_wait
    engine = EngineWithImage(layers=(layer_of_noise(1), layer_of_noise(2)))
    engine.replaced_parts = parts

    with pytest.raises(error, match=message):
        pusher.push(engine)

    assert pusher.server.count("PATCH") == uploads
    assert pusher.server.count("GET", "uploads") == 0


def test_a_killed_push_is_finished_by_the_same_command(pusher: Pusher) -> None:
    """The kernel ends it within a layer: nothing is tidied up, and nothing needs to be."""
    child = subprocess.Popen(
        [sys.executable, __file__, pusher.server.host, str(pusher.cache)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    uploads = itertools.count(1)

    def kill_within_the_fifth_upload(method: str, _path: str) -> int | None:
        # The fifth begins when one of the four that are sent at once has arrived.
        if method != "PATCH" or next(uploads) <= AT_ONCE:
            return None
        child.send_signal(signal.SIGKILL)
        return 1000

    pusher.server.takes = kill_within_the_fifth_upload
    assert child.wait(60) == -signal.SIGKILL
    assert not pusher.registry.manifests
    arrived = set(pusher.registry.blobs["staging"])
    assert arrived
    assert not list(pusher.cache.glob("tmp*")), "what it had compressed is gone"

    pusher.server.takes = lambda *_: None
    pusher.server.seen.clear()
    engine = EngineWithImage()
    manifest = pusher.push(engine)

    sent = set()
    for method, path, _headers in pusher.server.seen:
        if method == "PUT":
            sent.add(path.partition("digest=")[2])
    assert not sent & arrived
    assert manifest.config.digest == engine.info.digest


# --- an engine whose store was changed ------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "is_named"),
    [
        pytest.param(layer_of_noise(77), True, id="a foreign layer"),
        pytest.param(layer_of_noise(77), False, id="a foreign layer without a name"),
        # Without a name it would be right: older engines do not say which layer a part is.
        pytest.param(layer_of_noise(1), True, id="another layer of the image"),
    ],
)
def test_a_tar_that_is_not_the_layer_that_the_engine_names_is_refused(
    pusher: Pusher, content: bytes, is_named: bool
) -> None:
    engine = EngineWithImage()
    digest = engine.info.layers[0] if is_named else ""
    part = ImagePart(digest=digest, chunks=iter([content]))
    engine.replaced_parts = lambda *_: iter([part])

    with pytest.raises(UserError, match="does not have the digest that the image names"):
        pusher.push(engine)

    assert pusher.server.count("PATCH") == 0


def test_a_layer_that_the_engine_does_not_give_is_an_error(pusher: Pusher) -> None:
    engine = EngineWithImage()
    engine.replaced_parts = lambda info, requested: itertools.islice(
        engine.own_parts(info, requested), 3
    )

    with pytest.raises(UserError, match="which the engine does not give"):
        pusher.push(engine)

    assert not pusher.registry.manifests


# --- progress -------------------------------------------------------------------------------------


def push_with_progress(pusher: Pusher, engine: EngineWithImage) -> list[StepProgress]:
    events: list[BuildEvent] = []
    pusher.push(engine, on_event=events.append)
    return [event for event in events if isinstance(event, StepProgress)]


@pytest.mark.parametrize(
    ("pushed_before", "summary"),
    [
        pytest.param(0, "sent 2 MB", id="no layer was pushed before"),
        pytest.param(3, "sent 0 MB", id="three of four were"),
    ],
)
def test_progress_ends_at_the_bytes_that_were_missing(
    pusher: Pusher, pushed_before: int, summary: str
) -> None:
    engine = EngineWithImage()
    if pushed_before:
        pusher.push(EngineWithImage(layers=engine.layers[:pushed_before]))

    events = push_with_progress(pusher, engine)

    missing = sum(len(layer) for layer in engine.layers[pushed_before:])
    assert max(event.current for event in events) == missing
    assert events[-1].current == missing
    assert events[-1].what.startswith(summary)


if __name__ == "__main__":
    Pusher(Server(host=sys.argv[1]), BlobRegistry(), Path(sys.argv[2])).push(EngineWithImage())
