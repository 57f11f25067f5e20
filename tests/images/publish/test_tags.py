"""How tags move: states, transitions, and all or nothing, against a registry of the test's own."""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

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
"""The version of the new image in every test."""


# --- versions -------------------------------------------------------------------------------------

LABELS = {"dev.truetag.torch": "2.7.1", "dev.truetag.image": NAME}


def test_an_images_version_is_read_from_its_labels_and_date() -> None:
    version = ImageVersion.from_labels(LABELS, "2026-11-21T03:20:36.065910682Z")

    assert version
    assert version.torch == "2.7.1"
    assert version.created == datetime(2026, 11, 21, 3, 20, 36, 65910, tzinfo=UTC)


@pytest.mark.parametrize(
    ("labels", "created"),
    [
        pytest.param({}, "2026-11-21T03:20:36Z", id="no labels"),
        pytest.param(
            {**LABELS, "dev.truetag.torch": "new"}, "2026-11-21T03:20:36Z", id="no torch version"
        ),
        pytest.param(LABELS, "yesterday", id="no date"),
    ],
)
def test_an_image_with_unreadable_labels_or_date_has_no_version(
    labels: dict[str, str], created: str
) -> None:
    assert ImageVersion.from_labels(labels, created) is None


# --- a registry -----------------------------------------------------------------------------------


@dataclass
class ImageStore:
    """A repository that can refuse requests, and a client of it."""

    server: Server
    client: Registry
    refused_requests: set[str] = field(default_factory=set)
    """`PUT latest`: these requests get status 403."""

    def store_image(
        self, *, torch: str = "2.7.1", hours_old: int = 0, tag: str = "", labelled: bool = True
    ) -> Manifest:
        """Store an image that was built some hours before NOW, and let a tag name it."""
        labels = {**LABELS, "dev.truetag.torch": torch} if labelled else {}
        created = f"{NOW - timedelta(hours=hours_old):%Y-%m-%dT%H:%M:%SZ}"
        config = json.dumps({"created": created, "config": {"Labels": labels}}).encode()
        self.client.put_blob(config)
        data = {"config": Descriptor.of("application/x.config", config).as_json(), "layers": []}
        manifest = Manifest(media_type=OCI_MANIFEST, content=json.dumps(data).encode())
        self.client.put(manifest, tag)
        return manifest

    def digests(self, *names: str) -> list[str | None]:
        """What tags name; None for a tag that does not exist."""
        manifests = [self.client.find(name) for name in names]
        return [manifest.digest if manifest else None for manifest in manifests]

    def plan(self, manifest: Manifest, alias_refusal: str = "") -> list[TagChange]:
        """Plan that NAME and two aliases shall name an image."""
        kinds = {NAME: TagKind.NAME, "latest": TagKind.ALIAS, "cu126": TagKind.ALIAS}
        return tags.plan(self.client, manifest, [VERSION], kinds, alias_refusal)

    def after_each_request(self, act: Callable[[str, str, bytes], None]) -> None:
        """Call `act` with method, tag and body of each request, before its answer is sent."""
        answer = self.server.answer

        def answer_and_act(
            method: str, path: str, headers: dict[str, str], body: bytes
        ) -> Reply | None:
            reply = answer(method, path, headers, body)
            act(method, tag_in(path), body)
            return reply

        self.server.answer = answer_and_act


def tag_in(path: str) -> str:
    """The tag that a request to `/v2/x/manifests/TAG` is about."""
    return path.rpartition("/")[2]


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStore]:
    monkeypatch.setattr(registry_client, "wait", lambda *_: None)
    with (
        serving() as server,
        Registry(Repository(server.host, "x"), credentials=lambda _: None) as client,
    ):
        store = ImageStore(server, client)
        registry = BlobRegistry()

        def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
            if f"{method} {tag_in(path)}" in store.refused_requests:
                return 403, {}, b""
            return registry.answer(method, path, headers, body)

        server.answer = answer
        yield store


# --- what is planned ------------------------------------------------------------------------------

CREATE, KEEP, MOVE = Action.CREATE, Action.KEEP, Action.MOVE
LEAVE, REFUSE = Action.LEAVE, Action.REFUSE


@pytest.mark.parametrize(
    ("named_now", "for_immutable", "for_name", "for_alias"),
    [
        pytest.param(None, CREATE, CREATE, CREATE, id="nothing"),
        pytest.param({}, KEEP, KEEP, KEEP, id="this image"),
        pytest.param({"hours_old": 5}, REFUSE, MOVE, MOVE, id="an image built before"),
        pytest.param(
            {"torch": "2.6.0", "hours_old": -5}, REFUSE, MOVE, MOVE, id="a lower torch version"
        ),
        pytest.param({"hours_old": -5}, REFUSE, REFUSE, LEAVE, id="an image built later"),
        pytest.param(
            {"torch": "2.10.0", "hours_old": 5}, REFUSE, REFUSE, LEAVE, id="a higher torch version"
        ),
        pytest.param({"labelled": False}, REFUSE, REFUSE, LEAVE, id="something not ours"),
    ],
)
def test_what_a_tag_names_now_decides_what_happens_to_it(
    repository: ImageStore,
    named_now: dict[str, str | int | bool] | None,
    for_immutable: Action,
    for_name: Action,
    for_alias: Action,
) -> None:
    """The table in the docstring of images/publish/tags.py."""
    new = repository.store_image()
    for kind in TagKind:
        if named_now is not None:
            repository.store_image(**named_now, tag=kind)  # type: ignore[arg-type]

    changes = tags.plan(repository.client, new, [VERSION], {str(kind): kind for kind in TagKind})

    actions = {change.kind: change.action for change in changes}
    assert actions == {
        TagKind.IMMUTABLE: for_immutable,
        TagKind.NAME: for_name,
        TagKind.ALIAS: for_alias,
    }
    for change in changes:
        assert bool(change.reason) == (change.action in (LEAVE, REFUSE))


def test_a_newer_image_refuses_the_name_and_leaves_the_alias(repository: ImageStore) -> None:
    new = repository.store_image()
    repository.store_image(hours_old=-5, tag=NAME)
    repository.store_image(torch="2.8.0", tag="latest")

    changes = repository.plan(new)

    assert [(change.tag, change.action) for change in changes] == [
        (NAME, REFUSE),
        ("latest", LEAVE),
        ("cu126", CREATE),
    ]
    assert changes[1].reason == (
        "latest names an image with torch 2.8.0, and the one to be published has the older torch "
        "2.7.1"
    )


def test_a_refused_change_moves_no_tag(repository: ImageStore) -> None:
    new = repository.store_image()
    repository.store_image(hours_old=-5, tag=NAME)
    changes = repository.plan(new)

    with pytest.raises(UserError, match=r"of 2026-11-21 08:00, .* is older \(2026-11-21 03:00\)"):
        tags.move(repository.client, changes)

    assert repository.digests("cu126") == [None]


@pytest.mark.parametrize(
    ("foreign", "cause"),
    [
        ("unlabelled image", "it names an image without truetag's labels"),
        ("index", "its index holds no image"),
    ],
)
def test_what_is_not_ours_is_never_replaced(
    repository: ImageStore, foreign: str, cause: str
) -> None:
    new = repository.store_image()
    if foreign == "index":
        repository.client.put(Manifest(media_type=OCI_INDEX, content=b"{}"), NAME)
    else:
        repository.store_image(labelled=False, tag=NAME)

    with pytest.raises(UserError, match=f"must not be moved: {cause}") as error:
        tags.move(repository.client, repository.plan(new))

    # Building anew would not help: that image would be refused, too.
    assert f"delete the tag {NAME}" in error.value.problems[0].then


def test_aliases_stay_where_their_gate_is_closed(repository: ImageStore) -> None:
    new = repository.store_image()
    old = repository.store_image(hours_old=5, tag="latest")
    reason = "the gpu tier was not judged"

    changes = repository.plan(new, alias_refusal=reason)
    tags.move(repository.client, changes)

    assert repository.digests(NAME, "latest", "cu126") == [new.digest, old.digest, None]
    assert {change.reason for change in changes if change.kind is TagKind.ALIAS} == {reason}


# --- all or nothing -------------------------------------------------------------------------------


def test_existing_tags_move_before_new_ones_are_created(repository: ImageStore) -> None:
    """Only those that exist can always be put back."""
    new = repository.store_image()
    repository.store_image(hours_old=5, tag="cu126")
    changes = repository.plan(new)
    repository.server.seen.clear()

    tags.move(repository.client, changes)

    put_tags = [tag_in(path) for method, path, _ in repository.server.seen if method == "PUT"]
    assert put_tags == ["cu126", NAME, "latest"]


def test_when_the_registry_refuses_one_tag_all_are_put_back(repository: ImageStore) -> None:
    new = repository.store_image()
    old = repository.store_image(hours_old=5, tag=NAME)
    repository.store_image(hours_old=5, tag="latest")
    changes = repository.plan(new)
    repository.refused_requests.add("PUT latest")

    with pytest.raises(UserError, match="403"):
        tags.move(repository.client, changes)

    assert repository.digests(NAME, "latest", "cu126") == [old.digest, old.digest, None]


def test_a_tag_that_cannot_be_put_back_is_named(repository: ImageStore) -> None:
    new = repository.store_image()
    repository.store_image(hours_old=5, tag=NAME)
    changes = repository.plan(new)
    repository.refused_requests |= {"PUT cu126", "DELETE latest"}

    with pytest.raises(UserError, match="latest could not be put back") as error:
        tags.move(repository.client, changes)

    # The next step of the first error is a part of the only one.
    assert str(error.value.problems[0]).count("next: ") == 1


def test_an_interrupt_between_two_tags_moves_all_or_none(repository: ImageStore) -> None:
    """None, unless every tag had moved before this process got the signal."""
    new = repository.store_image()
    old = repository.store_image(hours_old=5, tag=NAME)
    older = repository.store_image(hours_old=9, tag="latest")
    changes = repository.plan(new)
    got_signal = threading.Event()
    was_sent = threading.Event()

    def interrupt_once(method: str, tag: str, _body: bytes) -> None:
        if (method, tag) == ("PUT", "latest") and not was_sent.is_set():
            was_sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            got_signal.wait()

    def raise_interrupt(*_: object) -> None:
        got_signal.set()
        raise KeyboardInterrupt

    repository.after_each_request(interrupt_once)
    handler_before = signal.signal(signal.SIGINT, raise_interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            tags.move(repository.client, changes)
    finally:
        signal.signal(signal.SIGINT, handler_before)

    none_moved = [old.digest, older.digest, None]
    all_moved = [new.digest, new.digest, new.digest]
    assert repository.digests(NAME, "latest", "cu126") in (none_moved, all_moved)


# --- other publishers -----------------------------------------------------------------------------


def test_a_tag_that_another_publisher_takes_right_after_us_is_left_to_them(
    repository: ImageStore,
) -> None:
    new = repository.store_image()
    theirs = repository.store_image(hours_old=-5)
    old = repository.store_image(hours_old=5, tag=NAME)
    repository.store_image(hours_old=5, tag="latest")
    changes = repository.plan(new)
    answer = repository.server.answer

    def overtake(method: str, tag: str, body: bytes) -> None:
        if (method, tag) == ("PUT", "latest") and body == new.content:
            headers = {"Content-Type": theirs.media_type}
            answer("PUT", "/v2/x/manifests/latest", headers, theirs.content)

    repository.after_each_request(overtake)

    with pytest.raises(UserError, match="latest: another process or machine moved this tag"):
        tags.move(repository.client, changes)

    assert repository.digests(NAME, "latest", "cu126") == [old.digest, theirs.digest, None]


@pytest.mark.parametrize("existed", [True, False], ids=["moved", "created"])
def test_a_tag_that_another_publisher_changed_since_the_plan_is_not_overwritten(
    repository: ImageStore, existed: bool
) -> None:
    """Signing with cosign takes a while, between plan and move."""
    new = repository.store_image()
    old = repository.store_image(hours_old=5, tag=NAME)
    if existed:
        repository.store_image(hours_old=5, tag="latest")
    changes = repository.plan(new)
    theirs = repository.store_image(hours_old=-5, tag="latest")

    with pytest.raises(UserError, match="latest: another process or machine moved this tag"):
        tags.move(repository.client, changes)

    assert repository.digests(NAME, "latest", "cu126") == [old.digest, theirs.digest, None]


def test_a_tag_that_another_publisher_moved_to_the_same_image_is_no_error(
    repository: ImageStore,
) -> None:
    new = repository.store_image()
    repository.store_image(hours_old=5, tag="latest")
    changes = repository.plan(new)
    repository.client.put(new, "latest")

    tags.move(repository.client, changes)

    assert repository.digests(NAME, "latest", "cu126") == [new.digest] * 3
