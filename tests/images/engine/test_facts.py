"""What an engine is taken for, by what it says about itself: Podman judges images, and builds none."""

from pathlib import Path

import pytest

from images.engine import connection, image_store
from images.engine.docker_types import VersionResponse
from images.engine.facts import engine_facts
from images.errors import UserError

DOCKER: VersionResponse = {"Version": "20.10.24", "ApiVersion": "1.41", "Components": [{"Name": "Engine"}]}
PODMAN: VersionResponse = {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}


def test_podman_is_known_and_refused_only_where_something_is_built() -> None:
    facts = engine_facts("unix:///p", PODMAN, {}, builds=False)
    assert facts.podman and facts.version == "podman 4.3.1"
    with pytest.raises(UserError, match="Podman, whose Docker interface has no BuildKit"):
        engine_facts("unix:///p", PODMAN, {})
    assert not engine_facts("unix:///d", DOCKER, {}).podman


def test_a_store_that_names_images_by_their_manifests_is_known() -> None:
    """What engine 29 answers after a new installation."""
    facts = engine_facts("unix:///d", DOCKER, {"DriverStatus": [("driver-type", "io.containerd.snapshotter.v1")]})
    assert facts.containerd_images
    assert not engine_facts("unix:///d", DOCKER, {"DriverStatus": [("Backing Filesystem", "extfs")]}).containerd_images
    told = image_store.no_configuration("sha256:abc").problems[0]
    assert "containerd-snapshotter" in told.then and "daemon.json" in told.then


def test_an_engine_that_is_too_old_to_build_can_judge() -> None:
    old: VersionResponse = {**DOCKER, "ApiVersion": "1.38"}
    with pytest.raises(UserError, match="too old to have BuildKit"):
        engine_facts("unix:///d", old, {})
    assert engine_facts("unix:///d", old, {}, builds=False).api == "1.38"


def test_podman_is_looked_for_after_docker_and_not_where_something_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    asked: list[str] = []

    def refuse(*, base_url: str, builds: bool) -> None:
        asked.append(base_url)
        raise OSError("nobody listens")

    monkeypatch.setattr(connection, "Engine", refuse)
    for builds, last in ((True, "docker.sock"), (False, "podman.sock")):
        asked.clear()
        with pytest.raises(UserError, match="none answers"):
            connection.connect(builds=builds)
        assert asked[-1].endswith(last) and asked[0] == "unix:///var/run/docker.sock"
        assert (f"unix://{tmp_path}/podman/podman.sock" in asked) is not builds
