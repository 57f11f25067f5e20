"""Bases from a registry: by tag, by pinned digest, and in what time a silent one is noticed."""

import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from images.config.names import Minor
from images.config.paths import CHECKOUT
from images.context.base_images import PINS_FILE, acquire, pinned
from images.context.hosting import HostSettings
from images.engine import Engine
from images.engine.archive import pack
from images.errors import UserError
from images.host.hashing import oci_digest
from images.locking import debian
from images.planning.image import Base
from images.registry.client import Registry
from images.registry.distribution import OCI_CONFIG, Descriptor, image_manifest
from images.registry.reference import Repository
from tools.pin import pins

pytestmark = pytest.mark.engine


@pytest.fixture
def served(engine: Engine, registry: str, place: str) -> Iterator[tuple[str, str]]:
    """A reference that a registry on this machine serves, and its digest."""
    layer = b"".join(pack({"file": str(time.time_ns()).encode()}))
    rootfs = {"type": "layers", "diff_ids": [oci_digest(layer)]}
    known = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/file"]}, "rootfs": rootfs}
    config = json.dumps(known).encode()
    tar = Descriptor.of("application/vnd.oci.image.layer.v1.tar", layer)
    manifest = image_manifest(Descriptor.of(OCI_CONFIG, config), [tar])
    with Registry(Repository(registry, f"bases/{place}")) as target:
        for blob in (config, layer):
            target.put_blob(blob)
        target.put(manifest, "slim")
    repository = f"{registry}/bases/{place}"
    yield f"{repository}:slim", manifest.digest
    for reference in (f"{repository}:slim", f"{repository}@{manifest.digest}"):
        engine.remove(reference, force=True)


def base(reference: str) -> Base:
    return Base(
        key="test", reference=reference, suite=None, python=Minor(3, 11), glibc=Minor(2, 36)
    )


def test_by_tag_then_pinned_then_by_digest(
    engine: Engine, served: tuple[str, str], tmp_path: Path
) -> None:
    reference, digest = served
    said: list[str] = []
    assert engine.registry_digest(reference) == digest

    by_tag = acquire(
        engine, base(reference), root=tmp_path, host=HostSettings(), on_progress=said.append
    )
    assert (by_tag.reference, by_tag.digest, by_tag.origin) == (reference, digest, "tag")
    assert not by_tag.python
    assert "python -m tools.pin" in said[0]
    assert (
        acquire(
            engine, base(reference), root=tmp_path, host=HostSettings(), on_progress=said.append
        )
        == by_tag
    )
    assert len(said) == 1  # it was there

    (tmp_path / PINS_FILE).parent.mkdir()
    (tmp_path / PINS_FILE).write_text(pins(engine, [reference]))
    assert pinned(tmp_path) == {reference: digest}
    engine.remove(reference, force=True)
    by_digest = acquire(
        engine, base(reference), root=tmp_path, host=HostSettings(), on_progress=said.append
    )
    assert by_digest.origin == "digest"
    assert by_digest.reference == f"{reference.rpartition(':')[0]}@{digest}"
    built = engine.build({"Dockerfile": f"FROM {by_digest.reference}\nENV A=b\n".encode()}, None)
    assert engine.inspect(built.image_id).env["A"] == "b"
    engine.remove(built.image_id, force=True)


@pytest.mark.parametrize("is_pinned", [False, True], ids=["by its tag", "by a pinned digest"])
def test_a_lock_of_debians_packages_that_is_not_used_is_reported_also_if_the_engine_has_the_base(
    engine: Engine,
    served: tuple[str, str],
    is_pinned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a lock of the base's packages, no mmdebstrap, and a base that the engine has already.
    reference, digest = served
    locked_base = replace(base(reference), suite="bookworm")
    lock = debian.lock_path(locked_base)
    (tmp_path / "locks" / debian.FOLDER).mkdir(parents=True)
    shutil.copy(CHECKOUT.locks / lock, tmp_path / "locks" / lock)
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    if is_pinned:
        (tmp_path / PINS_FILE).write_text(f"{reference}: {digest}\n")

    def acquire_it(said: list[str]) -> None:
        acquire(engine, locked_base, root=tmp_path, host=HostSettings(), on_progress=said.append)

    acquire_it([])

    # When the base is acquired again.
    said: list[str] = []
    acquire_it(said)

    # Then the only line says which lock is not used, why, and what to do.
    (warning,) = said
    assert warning.startswith(f"locks/{lock} is not used, because ")
    if is_pinned:
        assert f"because {PINS_FILE} pins the digest of {reference}" in warning
        assert f"delete its line in {PINS_FILE}" in warning
    else:
        assert "because mmdebstrap is missing" in warning
        assert "`apt-get install mmdebstrap debian-archive-keyring`" in warning
        assert f"`docker pull {reference}`, then build with --no-cache" in warning


def test_a_pinned_digest_that_cannot_be_had_is_replaced_by_no_other_base(
    engine: Engine, tmp_path: Path
) -> None:
    reference = "127.0.0.1:1/base:slim"
    (tmp_path / PINS_FILE).parent.mkdir()
    (tmp_path / PINS_FILE).write_text(f"{reference}: sha256:{'0' * 64}\n")
    with pytest.raises(UserError, match="no registry answers, and this engine"):
        acquire(engine, base(reference), root=tmp_path, host=HostSettings(), on_progress=print)


def test_a_name_that_the_registry_does_not_know_is_an_error_and_not_a_missing_registry(
    engine: Engine, served: tuple[str, str]
) -> None:
    with pytest.raises(UserError, match="refuses"):
        engine.registry_digest(served[0].replace("slim", "nosuch"))


def test_a_registry_that_does_not_answer_costs_a_bounded_time(engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        started = time.monotonic()
        assert (
            engine.registry_digest(f"127.0.0.1:{mute.getsockname()[1]}/base:slim", timeout=2)
            is None
        )
        assert time.monotonic() - started < 100, "it waited for the SDK's own 120 s"
    assert engine.registry_digest("127.0.0.1:1/base:slim") is None
