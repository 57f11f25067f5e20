"""Pushes of our own, into a registry that breaks: what is sent once, what is sent again, and what never."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
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
LATER: Reply = (429, {"Retry-After": "60"}, b"")


def layer(number: int, size: int = 3 << 17) -> bytes:
    """Noise, which no compression makes smaller: more than what is sent at a time."""
    return random.Random(number).randbytes(size) + bytes(1024)


@dataclass
class Layers:
    """An engine in the little that a push asks of it. `unnamed`: its exports don't say which layer is which.

    `asked`: the layers that were wanted last; None where it was not asked at all. `headers`: bytes of each tar that its
    size does not count.
    """

    layers: Sequence[bytes] = tuple(layer(number) for number in range(4))
    unnamed: bool = False
    headers: int = 0
    asked: tuple[str, ...] | None = None

    @property
    def config(self) -> bytes:
        return json.dumps(
            {"rootfs": {"type": "layers", "diff_ids": [*map(oci_digest, self.layers)]}}
        ).encode()

    @property
    def info(self) -> ImageInfo:
        values: dict[str, Any] = dict.fromkeys(ImageInfo.__dataclass_fields__, "")
        ids = tuple(map(oci_digest, self.layers))
        return ImageInfo(
            **{
                **values,
                "identity": ImageIdentity(
                    configuration=oci_digest(self.config), platform="linux/amd64"
                ),
                "layers": ids,
                "size": sum(map(len, self.layers)),
            }
        )

    def parts(self, _info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        self.asked = tuple(wanted)
        given = [one for one in self.layers if self.unnamed or oci_digest(one) in wanted]
        sizes = [len(content) - self.headers for content in given]
        following = 0 if self.unnamed else sum(sizes)
        config = self.config
        yield ImagePart(
            digest=oci_digest(config), size=0, chunks=iter([config]), following=following
        )
        for content, size in zip(given, sizes, strict=True):
            digest = "" if self.unnamed else oci_digest(content)
            yield ImagePart(digest=digest, size=size, chunks=iter([content]))


@dataclass
class Place:
    """A registry, and pushes into it."""

    server: Server
    registry: BlobRegistry
    cache: Path
    sent: int = 0
    """Bytes of layers, by the last push."""

    def push(
        self,
        image: Layers,
        *,
        to: str = "staging",
        on_event: Callable[[BuildEvent], None] = lambda _event: None,
    ) -> Manifest:
        image.asked = None
        with Registry(Repository(self.server.host, to), credentials=lambda _: None) as target:
            done, self.sent = push.push(
                cast("Engine", image), image.info, target, self.cache, on_event=on_event
            )
            return done


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Place]:
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    with serving() as server:
        registry = BlobRegistry()
        server.answer = registry.answer
        yield Place(server, registry, tmp_path / "cache")


@pytest.mark.parametrize("unnamed", [False, True])
def test_the_manifest_has_the_image_id_and_nothing_is_tagged(place: Place, unnamed: bool) -> None:
    image = Layers(unnamed=unnamed)
    done = place.push(image)
    assert done.config.digest == image.info.digest
    assert [one.media_type for one in done.layers] == [MEDIA_TYPE] * 4
    assert place.registry.tags("staging") == set()


def test_the_same_image_gives_the_same_manifest_and_sends_nothing(
    place: Place, tmp_path: Path
) -> None:
    image = Layers()
    first = place.push(image)
    received = place.registry.received
    assert place.push(image) == first and image.asked is None
    place.cache = tmp_path / "another machine"
    assert place.push(image) == first and len(image.asked or ()) == 4, (
        "it can't know, and compresses anew"
    )
    assert place.registry.received == received and place.sent == 0


def test_layers_that_an_image_repeats_are_sent_once(place: Place) -> None:
    image = Layers(layers=(layer(1), layer(2), layer(1)))
    done = place.push(image)
    assert (
        len(done.layers) == 3
        and done.layers[0] == done.layers[2]
        and image.asked == image.info.layers[:2]
    )
    assert place.server.count("PATCH") == 2 + 1, "and the configuration"


def test_a_record_that_cannot_be_read_is_none(place: Place) -> None:
    image = Layers(layers=[layer(1)])
    place.push(image)
    (record,) = place.cache.rglob("*.json")
    record.write_text("[]")
    place.push(image)
    assert len(image.asked or ()) == 1


def test_five_layers_lie_on_the_disk_at_most(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly the registry takes them: four that are sent, and one that is compressed."""
    spools: set[SpooledBlob] = set()
    most = [0]
    all_given = threading.Event()

    class Counted(SpooledBlob):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            spools.add(self)
            most[0] = max(most[0], len(spools))

        def close(self) -> None:
            super().close()
            spools.discard(self)

    def before(method: str, _path: str) -> bool:
        if method == "PATCH":
            all_given.wait(
                2
            )  # which nothing that is right depends on: the engine can't have given all of them
            all_given.set()
        return True

    def parts(info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        yield from Layers.parts(image, info, wanted)
        all_given.set()

    monkeypatch.setattr(compression, "SpooledBlob", Counted)
    place.registry.before = before
    image = Layers(layers=[layer(number, 1 << 14) for number in range(9)])
    slow = replace(image)
    slow.parts = parts  # type: ignore[method-assign]
    place.push(slow)
    assert 1 <= most[0] <= 5 and not spools


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_end_of_a_push_waits_for_no_other_uploads_pause(
    place: Place, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    monkeypatch.setattr(registry_client, "wait", REAL_WAIT)
    told = threading.Event()

    def before(method: str, _path: str) -> Reply | bool:
        if method != "PATCH":
            return True
        first = not told.is_set()
        told.set()
        return LATER if first else (403, {}, b"")

    def parts(info: ImageInfo, wanted: Collection[str]) -> Iterator[ImagePart]:
        config, one, other = Layers.parts(image, info, wanted)
        yield config
        yield one
        told.wait()
        if interrupted:
            raise KeyboardInterrupt
        yield other

    place.registry.before = before
    image = Layers(layers=(layer(1), layer(2)))
    broken = replace(image)
    broken.parts = parts  # type: ignore[method-assign]
    with pytest.raises(
        KeyboardInterrupt if interrupted else UserError, match=None if interrupted else "HTTP 403"
    ):
        place.push(broken)
    assert (
        place.server.count("PATCH") == (1 if interrupted else 2)
        and place.server.count("GET", "uploads") == 0
    )


def test_a_killed_push_is_finished_by_the_same_command(place: Place) -> None:
    """The kernel ends it, in the middle of a layer: nothing is tidied up, and nothing needs to be."""
    child = subprocess.Popen(
        [sys.executable, __file__, place.server.host, str(place.cache)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    patches = itertools.count()

    def takes(method: str, _path: str) -> int | None:
        """The fifth comes when one of the four that are sent at once has arrived."""
        if method != "PATCH" or next(patches) < 4:
            return None
        child.send_signal(signal.SIGKILL)
        return 1000

    place.server.takes = takes
    assert child.wait(60) == -signal.SIGKILL
    place.server.takes = lambda *_: None
    assert not place.registry.manifests
    there = set(place.registry.blobs["staging"])
    assert there
    assert not list(place.cache.glob("tmp*")), "what it had compressed lies about"
    place.server.seen.clear()
    image = Layers()
    done = place.push(image)
    sent = {
        path.partition("digest=")[2] for method, path, _ in place.server.seen if method == "PUT"
    }
    assert not sent & there
    assert done.config.digest == image.info.digest


@pytest.mark.parametrize(
    ("content", "named"),
    # Another layer of the image without a name is right: older engines don't say which it is.
    [(layer(77), True), (layer(77), False), (layer(1), True)],
    ids=["foreign", "foreign, unnamed", "another layer"],
)
def test_a_tar_that_is_not_the_images_is_refused(place: Place, content: bytes, named: bool) -> None:
    image = Layers()
    wrong = replace(image)
    digest = image.info.layers[0] if named else ""
    wrong.parts = lambda *_: iter([ImagePart(digest=digest, size=1, chunks=iter([content]))])  # type: ignore[method-assign]
    with pytest.raises(UserError, match="not what the image ID stands for"):
        place.push(wrong)
    assert place.server.count("PATCH") == 0


def test_a_layer_that_the_engine_does_not_give_is_told(place: Place) -> None:
    image = Layers()
    less = replace(image)
    less.parts = lambda info, wanted: itertools.islice(Layers.parts(image, info, wanted), 3)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="which the engine does not give"):
        place.push(less)
    assert not place.registry.manifests


@pytest.mark.parametrize("headers", [0, 1000])
@pytest.mark.parametrize("there", [0, 3])
def test_progress_ends_at_the_bytes_that_were_missing(
    place: Place, there: int, headers: int
) -> None:
    image = Layers(headers=headers)
    if there:
        place.push(Layers(layers=image.layers[:there]))
    told = progress(place, image)
    missing = sum(len(content) - headers for content in image.layers[there:])
    assert {event.total for event in told} == {missing} and max(
        event.current for event in told
    ) == missing
    assert told[-1].current == missing
    assert told[-1].what.startswith("sent 2 MB" if not there else "sent 0 MB")
    told = progress(place, Layers(layers=(layer(9),), unnamed=True))
    assert {event.total for event in told} == {0}, "the engine does not say how much it gives"


def progress(place: Place, image: Layers) -> list[StepProgress]:
    events: list[BuildEvent] = []
    place.push(image, on_event=events.append)
    return [event for event in events if isinstance(event, StepProgress)]


if __name__ == "__main__":  # the push that is killed
    Place(Server(host=sys.argv[1]), BlobRegistry(), Path(sys.argv[2])).push(Layers())
