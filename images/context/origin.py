"""What is known of the origin of an image's layers: its recipe, and what builds of that gave.

The recipe follows from the checkout and from what the image's base and wheels are, which a build knows, and which the
labels of an image say. An image that was built by another recipe, before a template was edited say, is judged by its
own: its label names that, and the record still has its layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from images.context import bootstrap
from images.context.labels import LABELS, BaseContext
from images.context.recipe import ImageRecipe, LayerRecipe, base_recipe, image_recipe
from images.locking import debian, layer_record
from images.locking.layer_record import LayerRecord
from images.locking.lock_file import Lock
from images.planning.image import Image


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An image's recipe, and the record of all layers that were built twice."""

    record: LayerRecord
    recipe: ImageRecipe | None = None
    unknown: str = ""
    """Why its recipe can't be known, and what to do about it; empty: it is known."""
    base: str = ""
    """The custom base that it stands on; empty: the matrix's."""


def of_build(
    image: Image,
    lock: Lock,
    base: BaseContext,
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> Origin:
    """Return the origin of an image that is built on this base. `wheels`: file name -> sha256, as `image_recipe`."""
    record = layer_record.read(locks)
    if why := unknown_base(image, base):
        return Origin(record=record, unknown=why)
    packages = debian.find(image.base, locks) if base.origin == "bootstrapped" else None
    made_of = bootstrap.labels(packages) if packages else {}
    # Wheels that no pin of the image asks for are tools of an offline build.
    names = {pin.name.replace("-", "_") for pin in image.pins}
    own_wheels = {name: digest for name, digest in wheels.items() if name.split("-")[0] in names}
    below = base_recipe(base, made_of)
    recipe = image_recipe(image, lock.files, base, below, wheels=own_wheels, missing=missing)
    return Origin(
        recipe=recipe, record=record, base=base.reference if base.origin == "custom" else ""
    )


def of_labels(
    image: Image,
    lock: Lock,
    labels: Mapping[str, str],
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> Origin:
    """Return the origin of an image of which only the labels tell what it was built on."""
    today = _of_todays_recipe(image, lock, labels, locks, wheels=wheels, missing=missing)
    own_recipe = labels.get(f"{LABELS}.recipe", "")
    if today.recipe and today.recipe.digest == own_recipe:
        return today
    layers = layer_record.layers_of(today.record, own_recipe, str(image.name))
    if not layers:
        return today
    recipe = ImageRecipe(
        layers=tuple(
            LayerRecipe(layer=layer.layer, digest=digest) for digest, layer in layers.items()
        )
    )
    return Origin(record=today.record, recipe=recipe)


def _of_todays_recipe(
    image: Image,
    lock: Lock,
    labels: Mapping[str, str],
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> Origin:
    """Return the origin of an image as if it was built by this checkout, on the base that its labels name."""
    base = BaseContext.from_labels(labels)
    if base.origin == "custom":
        unknown = (
            f"what the custom base {base.reference} holds is in no label: "
            f"`nox -s build -- {image.name} --base {base.reference}` reads it"
        )
        return Origin(record=layer_record.read(locks), unknown=unknown)
    packages = debian.find(image.base, locks) if base.origin == "bootstrapped" else None
    if packages:
        base = replace(base, packages=packages.part(packages.layer))
    return of_build(image, lock, base, locks, wheels=wheels, missing=missing)


def unknown_base(image: Image, base: BaseContext) -> str:
    """Return why nothing can be recorded of what stands on a base; empty: it can."""
    if base.origin == "tag":
        return (
            f"its base was taken by the tag {base.reference}, which may name other bytes tomorrow: install mmdebstrap, "
            f"or pin the tag (`python -m tools.pin`), and build it again"
        )
    if not base.origin:
        return f"it does not say what it was built on: `nox -s build -- {image.name}` builds one that does"
    return ""
