"""The pull of the conventional base: only a whole one is a measurement."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from images.bench import loopback
from images.bench.parts import base_pull
from images.engine import client
from images.errors import Problem, UserError
from images.registry.distribution import Descriptor, Manifest
from tests.support.bench import Cache, bench_on

SIZES = {"a": 9, "b": 1}


BLOBS = [Descriptor(media_type="layer", digest=f"sha256:{first * 64}", size=size) for first, size in SIZES.items()]


def pulled(monkeypatch: pytest.MonkeyPatch, *messages: dict[str, Any]) -> dict[str, Any]:
    """Pull two layers from an engine that says these messages."""
    monkeypatch.setattr(base_pull, "load_around", lambda: nullcontext({}))

    def pull(name: str, on_event: Callable[[Any], None]) -> None:
        for message in messages:
            if event := client.transfer_event(name, "pulling", message):
                on_event(event)

    engine: Any = SimpleNamespace(facts=SimpleNamespace(url="unix:///e.sock"), untag=lambda _name: None, pull=pull)
    return base_pull.pulled(bench_on(engine)[0], "127.0.0.1:5/baseline:1", BLOBS)


def test_a_pull_that_found_layers_here_says_how_to_let_go_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="1 of 2 layers did not come from the registry") as told:
        pulled(monkeypatch, {"status": "Already exists", "id": "a" * 12}, {"status": "Pull complete", "id": "b" * 12})
    then = told.value.problems[0].then
    assert "`docker -H unix:///e.sock builder prune --all`" in then and "`nox -s bench -- --only cold`" in then


def test_a_pull_that_brought_what_should_have_been_here_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [{"status": "Pull complete", "id": first * 12} for first in "abc"]
    with pytest.raises(UserError, match="1 layers came from the registry that the engine should have kept"):
        pulled(monkeypatch, *words)
    with pytest.raises(UserError, match="1 layers came from"):
        pulled(monkeypatch, *words[1:])


def test_an_image_that_is_a_list_in_the_registry_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(media_type="application/vnd.oci.image.index.v1+json", content=b'{"manifests": []}')
    monkeypatch.setattr(base_pull.Registry, "get", lambda _self, _wanted: manifest)
    with pytest.raises(UserError, match="the engine pushed a list of images") as told:
        base_pull.layers_to_pull("127.0.0.1:5/baseline:1", ["sha256:a"], [])
    assert "containerd image store" in told.value.problems[0].then


def test_a_layer_so_small_that_no_word_is_said_of_its_download_was_pulled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen of engine 20.10 on a busy machine, in one of 60 pulls."""
    large = {"status": "Downloading", "id": "a" * 12, "progressDetail": {"current": 9, "total": 9}}
    last = [{"status": "Pull complete", "id": first * 12, "progressDetail": {}} for first in "ab"]
    found = pulled(monkeypatch, large, {"status": "Download complete", "id": "b" * 12, "progressDetail": {}}, *last)
    assert (found["layers"], found["bytes"]) == (2, 10)


def fails(error: Exception) -> None:
    raise error


BROKEN: list[tuple[Callable[..., Any] | None, str]] = [
    (None, "the engine: is on another machine, and the registry on this one"),
    (
        lambda *_, **__: fails(UserError(Problem(where="apt-get", cause="no mirror", then="mend it"))),
        "apt-get: no mirror",
    ),
    (lambda *_, **__: fails(PermissionError(13, "Permission denied", "/place")), "/place: Permission denied"),
    (
        lambda *_, **__: fails(UserError(Problem(where="a", cause="http://me:word@host/ fails"))),
        "a: http://***@host/ fails",
    ),
]


@pytest.mark.parametrize(("registry", "reason"), BROKEN)
def test_why_the_pull_of_the_base_could_not_be_timed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Callable[..., Any] | None, reason: str
) -> None:
    engine = Cache()
    engine.facts = SimpleNamespace(local=registry is not None)  # type: ignore[attr-defined]
    monkeypatch.setattr(loopback, "registry", registry)
    bench, said = bench_on(engine)
    found = base_pull.base_pulls(bench, engine.builder(), "base", tmp_path / "registry")
    assert found == {"base_pulls": [], "base_not_pulled": reason}
    assert reason in said[-1]
