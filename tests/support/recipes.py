"""Recipes of the real matrix, for tests of what compiles wheels."""

from functools import partial
from pathlib import Path

from images.planning.image import Image
from images.wheels import prebuilt
from images.wheels.recipe import Recipe, recipe_for
from tests.support.sources import SOURCES, image


def recipe_of(name: str = "cu130-torch211-sm90", package: str = "causal-conv1d") -> Recipe:
    return recipe_for(image(name), package, SOURCES.matrix)


def gathered(wanted: str | Image, folder: Path, **options: object) -> prebuilt.Gathered:
    """The wheels of an image on a machine that reaches no release."""

    def refuse(_url: str, _target: Path) -> None:
        raise OSError("no route to host")

    known: dict[str, object] = {
        "wheelhouse": None,
        "official": partial(prebuilt.obtain, cache=folder / "cache", fetch=refuse),
    }
    planned = image(wanted) if isinstance(wanted, str) else wanted
    return prebuilt.gather(planned, **{**known, **options})  # type: ignore[arg-type]
