"""Finds the origin of an image's layers: the recipe they were built by, and what builds of it gave.

The recipe follows from the checkout and from the image's base and wheels. A build knows these, and
the labels of an image name them. An image that was built by an older recipe, for example before a
template was edited, is judged by that: its label names it, and the record still has its layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from images.context import bootstrap
from images.context.labels import LABELS, BaseContext
from images.context.recipe import ImageRecipe, LayerRecipe, base_recipe, image_recipe
from images.errors import command
from images.locking import debian, layer_record
from images.locking.layer_record import LayerRecord
from images.locking.lock_file import Lock
from images.planning.image import Image, stem_of
from validate.installation import by_installation


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The recipe of an image, and the record of the layers that recipes gave."""

    record: LayerRecord
    """The whole of locks/layers.json."""
    recipe: ImageRecipe | None = None
    """The recipe that the image was built by; None: it is not known, and `unknown` says why."""
    unknown: str = ""
    """Why its recipe is not known, and what to do about it; empty: it is known."""
    base: str = ""
    """The custom base that it was built on; empty: the matrix's base."""
    has_wheelhouse: bool = False
    """Whether it was built with wheels from a folder of the user (--wheelhouse)."""


def of_build(
    image: Image,
    lock: Lock,
    base: BaseContext,
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
    has_wheelhouse: bool = False,
) -> Origin:
    """Return what an image that is built now is made of, with the record of earlier builds.

    What it is made of is a digest for each layer (its recipe): of the base, the templates of the
    build steps and the locked packages. If it can't be known, the result says why.

    locks: the folder of locks, which has the record.
    wheels: file name -> sha256, of wheels that no index has.
    missing: package -> why the image lacks it.
    has_wheelhouse: see Origin.
    """
    record = layer_record.read(locks)
    unknown = why_no_recipe(image, base)
    if unknown:
        return Origin(record=record, unknown=unknown)

    # The recipe of a base that was made here is a digest of its labels, which say of which Debian
    # packages it was made, and how.
    debian_lock = debian.find(image.base, locks) if base.origin == "bootstrapped" else None
    labels_of_base = bootstrap.labels(debian_lock) if debian_lock else {}
    recipe_of_base = base_recipe(base, labels_of_base)

    # Only wheels of pinned packages count. `wheels` may also have the installer (uv), which is not
    # in the image.
    stems = {pin.wheel_stem for pin in image.pins}
    own_wheels = {file: digest for file, digest in wheels.items() if stem_of(file) in stems}
    recipe = image_recipe(
        image, lock.files, base, recipe_of_base, wheels=own_wheels, missing=missing
    )
    # Only a custom base is named. The text is empty for the base of the matrix.
    custom_base = base.reference if base.origin == "custom" else ""
    return Origin(recipe=recipe, record=record, base=custom_base, has_wheelhouse=has_wheelhouse)


def of_labels(
    image: Image,
    lock: Lock,
    labels: Mapping[str, str],
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> Origin:
    """Return what an existing image is made of, by its labels, with the record of builds.

    What it is made of is a digest for each layer (its recipe). Usually these are the digests of a
    build of today. An image that was built from older templates or locks has others, which are
    returned if the record has them.

    locks: the folder of locks, which has the record.
    wheels: file name -> sha256, of wheels that no index has.
    missing: package -> why the image lacks it.
    """
    today = _of_todays_recipe(image, lock, labels, locks, wheels=wheels, missing=missing)
    # Without a known base there is no recipe, whatever the label says.
    if today.recipe is None:
        return today
    digest_in_label = labels.get(f"{LABELS}.recipe", "")
    if digest_in_label == today.recipe.digest:
        return today

    # The image was built by another recipe, for example before a template was edited. Its layers
    # are in the record under the recipes of that build: recipe -> layer.
    layers = layer_record.layers_of(today.record, digest_in_label, str(image.name))
    if not layers:
        return today
    recipes = [LayerRecipe(layer=layer.layer, digest=digest) for digest, layer in layers.items()]
    return Origin(record=today.record, recipe=ImageRecipe(layers=tuple(recipes)))


def _of_todays_recipe(
    image: Image,
    lock: Lock,
    labels: Mapping[str, str],
    locks: Path,
    *,
    wheels: Mapping[str, str],
    missing: Mapping[str, str],
) -> Origin:
    """Return what an image would be made of if this checkout built it, on the base of its labels.

    Parameters and result are those of `of_labels`.
    """
    base = BaseContext.from_labels(labels)
    # On a base that was made of Debian packages, the first layer installs more packages of the same
    # lock. No label lists them, so they are read from the lock.
    debian_lock = debian.find(image.base, locks) if base.origin == "bootstrapped" else None
    if debian_lock:
        base = replace(base, packages=debian_lock.serialize_only(debian_lock.layer))
    return of_build(image, lock, base, locks, wheels=wheels, missing=missing)


def why_no_recipe(image: Image, base: BaseContext) -> str:
    """Return why layers on a base have no recipe, with the next command; empty: they have one.

    A recipe is a digest of all that decides the bytes of a layer. So the base must be known by its
    bytes, and not by a tag only.
    """
    if base.origin == "tag":
        pin = by_installation(
            checkout="pin the tag (`python -m tools.pin`)",
            installed="pin its digest (locks/bases.yaml: a line `REFERENCE: sha256:DIGEST`)",
        )
        return (
            f"its base was taken by the tag {base.reference}, which may name other bytes tomorrow: "
            f"install mmdebstrap, or {pin}, and build it again"
        )
    if not base.origin:
        return (
            "it does not say what it was built on: "
            f"`{command('build', str(image.name))}` builds one that does"
        )
    return ""
