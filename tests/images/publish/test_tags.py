"""How tags move: states, transitions, and all or nothing, against a registry of the test's own."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from images.errors import UserError
from images.publish import tags
from images.publish.tags import Action, ImageVersion, TagChange, TagKind
from images.registry import client as registry_client
from images.registry.client import Registry
from images.registry.distribution import OCI_INDEX, OCI_MANIFEST, Descriptor, Manifest
from images.registry.reference import Repository
from tests.support.attested import NAME
from tests.support.blob_registry import BlobRegistry
from tests.support.http_server import Reply, Server, serving

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


VERSION = ImageVersion(name=NAME, torch="2.7.1", created=NOW)


def test_an_images_version_is_read_from_its_labels() -> None:
    labels = {"dev.truetag.torch": "2.7.1", "dev.truetag.image": NAME}
    found = ImageVersion.of(labels, "2026-11-21T03:20:36.065910682Z")
    assert found and found.created == datetime(2026, 11, 21, 3, 20, 36, 65910, tzinfo=UTC)
    assert ImageVersion.of({}, "2026-11-21T03:20:36Z") is None
    assert ImageVersion.of({**labels, "dev.truetag.torch": "new"}, "2026-11-21T03:20:36Z") is None
    assert ImageVersion.of(labels, "yesterday") is None


@dataclass
class Store:
    """A registry that can be told to refuse tags, and a client of it."""

    server: Server
    client: Registry
    refused: set[str] = field(default_factory=set)
    """`PUT latest`: these requests get status 403."""

    def image(
        self, torch: str = "2.7.1", age: int = 0, *, tag: str = "", labelled: bool = True
    ) -> Manifest:
        """Store an image of some hours, and let a tag name it."""
        labels = {"dev.truetag.torch": torch, "dev.truetag.image": NAME} if labelled else {}
        created = f"{NOW - timedelta(hours=age):%Y-%m-%dT%H:%M:%SZ}"
        config = json.dumps({"created": created, "config": {"Labels": labels}}).encode()
        self.client.put_blob(config)
        data = {"config": Descriptor.of("application/x.config", config).as_json(), "layers": []}
        manifest = Manifest(media_type=OCI_MANIFEST, content=json.dumps(data).encode())
        self.client.put(manifest, tag)
        return manifest

    def named(self, *names: str) -> list[str | None]:
        """The digests that tags name."""
        return [found.digest if (found := self.client.find(name)) else None for name in names]

    def plan(self, manifest: Manifest, refusal: str = "") -> list[TagChange]:
        """Of NAME and two aliases."""
        kinds = {NAME: TagKind.NAME, "latest": TagKind.ALIAS, "cu126": TagKind.ALIAS}
        return tags.plan(self.client, manifest, [VERSION], kinds, refusal)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    with (
        serving() as server,
        Registry(Repository(server.host, "x"), credentials=lambda _: None) as client,
    ):
        found = Store(server, client)
        stores = BlobRegistry().answer

        def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
            if f"{method} {path.rpartition('/')[2]}" in found.refused:
                return 403, {}, b""
            return stores(method, path, headers, body)

        server.answer = answer
        yield found


def actions(changes: list[TagChange]) -> list[tuple[str, Action]]:
    return [(change.tag, change.action) for change in changes]


CREATE, KEEP, MOVE, LEAVE, REFUSE = (
    Action.CREATE,
    Action.KEEP,
    Action.MOVE,
    Action.LEAVE,
    Action.REFUSE,
)


@pytest.mark.parametrize(
    ("there", "actions"),
    [
        (None, (CREATE, CREATE, CREATE)),
        ({"torch": "2.7.1"}, (KEEP, KEEP, KEEP)),
        ({"torch": "2.7.1", "age": 5}, (REFUSE, MOVE, MOVE)),
        ({"torch": "2.6.0", "age": -5}, (REFUSE, MOVE, MOVE)),
        ({"torch": "2.7.1", "age": -5}, (REFUSE, REFUSE, LEAVE)),
        ({"torch": "2.10.0", "age": 5}, (REFUSE, REFUSE, LEAVE)),
        ({"labelled": False}, (REFUSE, REFUSE, LEAVE)),
    ],
    ids=[
        "nothing",
        "this",
        "built before",
        "lower torch",
        "built later",
        "higher torch",
        "not ours",
    ],
)
def test_what_a_tag_names_decides_what_happens_to_it(
    store: Store, there: dict[str, Any] | None, actions: tuple[Action, ...]
) -> None:
    """The table of the module."""
    new = store.image()
    for kind in TagKind:
        if there is not None:
            store.image(**there, tag=kind)
    changes = tags.plan(store.client, new, [VERSION], {str(kind): kind for kind in TagKind})
    assert tuple(change.action for change in changes) == actions
    assert all(bool(change.reason) == (change.action in (LEAVE, REFUSE)) for change in changes)


def test_a_newer_image_stops_the_name_and_keeps_the_alias(store: Store) -> None:
    new = store.image()
    store.image(age=-5, tag=NAME)
    store.image("2.8.0", tag="latest")
    changes = store.plan(new)
    assert actions(changes) == [
        (NAME, Action.REFUSE),
        ("latest", Action.LEAVE),
        ("cu126", Action.CREATE),
    ]
    assert changes[1].reason == "latest has torch 2.8.0, this is 2.7.1"
    with pytest.raises(UserError, match=r"is of 2026-11-21 08:00, this of 2026-11-21 03:00"):
        tags.move(store.client, changes)
    assert store.named("cu126") == [None]


@pytest.mark.parametrize("foreign", ["unlabelled", "index"])
def test_what_is_not_ours_is_never_replaced(store: Store, foreign: str) -> None:
    new = store.image()
    if foreign == "index":
        store.client.put(Manifest(media_type=OCI_INDEX, content=b"{}"), NAME)
    else:
        store.image(labelled=False, tag=NAME)
    with pytest.raises(UserError, match="an image that is not ours") as refused:
        tags.move(store.client, store.plan(new))
    assert "delete this tag" in refused.value.problems[0].then, "a build anew would be refused, too"


def test_aliases_stay_where_their_gate_is_closed(store: Store) -> None:
    new = store.image()
    old = store.image(age=5, tag="latest")
    changes = store.plan(new, "the gpu tier was not judged")
    tags.move(store.client, changes)
    assert store.named(NAME, "latest", "cu126") == [new.digest, old.digest, None]
    assert {change.reason for change in changes if change.kind is TagKind.ALIAS} == {
        "the gpu tier was not judged"
    }


def test_existing_tags_move_before_new_ones_are_created(store: Store) -> None:
    new = store.image()
    store.image(age=5, tag="cu126")
    changes = store.plan(new)
    store.server.seen.clear()
    tags.move(store.client, changes)
    put = [path.rpartition("/")[2] for method, path, _ in store.server.seen if method == "PUT"]
    assert put == ["cu126", NAME, "latest"]


def test_when_one_tag_is_refused_all_are_put_back(store: Store) -> None:
    new = store.image()
    old = store.image(age=5, tag=NAME)
    store.image(age=5, tag="latest")
    changes = store.plan(new)
    store.refused.add("PUT latest")
    with pytest.raises(UserError, match="403"):
        tags.move(store.client, changes)
    assert store.named(NAME, "latest", "cu126") == [old.digest, old.digest, None]


def test_a_tag_that_cannot_be_put_back_is_told(store: Store) -> None:
    new = store.image()
    store.image(age=5, tag=NAME)
    changes = store.plan(new)
    store.refused |= {"PUT cu126", "DELETE latest"}
    with pytest.raises(UserError, match="latest could not be put back"):
        tags.move(store.client, changes)


def test_an_interrupt_between_two_tags_moves_all_or_none(store: Store) -> None:
    """None, unless the mover was done before this process was told: the signal has no order with the server's reply."""
    new = store.image()
    old = store.image(age=5, tag=NAME)
    older = store.image(age=9, tag="latest")
    changes, answer, told = store.plan(new), store.server.answer, threading.Event()

    def interrupted(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        reply = answer(method, path, headers, body)
        if (method, path.rpartition("/")[2]) == ("PUT", "latest"):
            store.server.answer = answer
            os.kill(os.getpid(), signal.SIGINT)
            told.wait()
        return reply

    def tell(*_: object) -> None:
        told.set()
        raise KeyboardInterrupt

    store.server.answer = interrupted
    before = signal.signal(signal.SIGINT, tell)
    try:
        with pytest.raises(KeyboardInterrupt):
            tags.move(store.client, changes)
    finally:
        signal.signal(signal.SIGINT, before)
    assert store.named(NAME, "latest", "cu126") in (
        [old.digest, older.digest, None],
        [new.digest] * 3,
    )


def test_a_tag_that_another_publisher_takes_right_after_us_is_told_and_left_to_him(
    store: Store,
) -> None:
    new, theirs = store.image(), store.image(age=-5)
    old = store.image(age=5, tag=NAME)
    store.image(age=5, tag="latest")
    changes, answer = store.plan(new), store.server.answer

    def overtaken(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        reply = answer(method, path, headers, body)
        if method == "PUT" and path.endswith("/latest") and body == new.content:
            answer(method, path, {"Content-Type": theirs.media_type}, theirs.content)
        return reply

    store.server.answer = overtaken
    with pytest.raises(UserError, match="latest: somebody else moved it at the same time"):
        tags.move(store.client, changes)
    assert store.named(NAME, "latest", "cu126") == [old.digest, theirs.digest, None]


@pytest.mark.parametrize("there", [True, False], ids=["moved", "created"])
def test_what_another_publisher_changed_since_the_plan_is_not_overwritten(
    store: Store, there: bool
) -> None:
    """cosign signs between plan and move."""
    new = store.image()
    old = store.image(age=5, tag=NAME)
    if there:
        store.image(age=5, tag="latest")
    changes = store.plan(new)
    theirs = store.image(age=-5, tag="latest")
    with pytest.raises(UserError, match="latest: somebody else moved it"):
        tags.move(store.client, changes)
    assert store.named(NAME, "latest", "cu126") == [old.digest, theirs.digest, None]


def test_what_another_run_moved_to_the_same_image_since_the_plan_is_right(store: Store) -> None:
    new = store.image()
    store.image(age=5, tag="latest")
    changes = store.plan(new)
    store.client.put(new, "latest")
    tags.move(store.client, changes)
    assert store.named(NAME, "latest", "cu126") == [new.digest] * 3
