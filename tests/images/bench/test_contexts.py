"""The contexts of the conventional side."""

from images.bench import contexts
from images.locking import lock_file
from images.planning import plan
from tests.support.bench import SOURCES


def test_the_conventional_side_holds_every_package_of_ours_at_the_same_version() -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    locked = lock_file.read(planned.image)
    context = contexts.conventional_context(planned.image, locked, "base:1", {"host/env": b""})
    requirements = context["requirements.txt"]
    assert isinstance(requirements, bytes)
    lines = requirements.decode().splitlines()
    ours = locked.versions(planned.image.layers)
    assert {f"{name}=={version}" for name, version in ours.items()} == {
        line for line in lines if not line.startswith("#")
    }


def test_pip_is_in_the_part_of_the_conventional_image_that_is_at_hand() -> None:
    (planned,) = plan.select(["cu130-torch211"], SOURCES)
    assert planned.image is not None
    dockerfile = contexts.conventional_context(planned.image, lock_file.read(planned.image), "base:1", {})["Dockerfile"]
    assert isinstance(dockerfile, bytes)
    system, _, rest = dockerfile.decode().partition("\nFROM system\n")
    assert "pip install --no-cache-dir pip==" in system and "requirements.txt" not in system
    assert rest.count("RUN") == 1 and "-r requirements.txt" in rest
