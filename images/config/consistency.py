"""What is wrong in a matrix though each of its rows is sound. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.utils import canonicalize_name

from images.config import yamlfile
from images.config.names import ImageName, Minor
from images.config.schema import Matrix
from images.config.validating import advice
from images.config.yamlfile import YamlFile
from images.errors import Problem


def problems(matrix: Matrix, file: YamlFile, left_out: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    """What the types can't say: names that stand twice, or point at nothing. `left_out`: rows that were unsound."""
    yield from _twice(matrix, file)
    yield from _default_base(matrix, file, left_out)
    yield from _pins(matrix, file)
    yield from _stacks(matrix, file, left_out)
    yield from _optional(matrix, file)
    yield from _left_out_in_vain(matrix, file, left_out)
    yield from _nightly_in_vain(matrix, file)
    yield from _aliases(matrix, file)


def _default_base(matrix: Matrix, file: YamlFile, left_out: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    if matrix.defaults.base not in matrix.bases and ("bases", matrix.defaults.base) not in left_out:
        known = ", ".join(matrix.bases)
        cause = f"there is no base {matrix.defaults.base!r} (there are {known})"
        yield Problem(where=file.where(("defaults", "base")), cause=cause, then=advice(file))


def _pins(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    layered = {name for names in matrix.layers.values() for name in names}
    pinned: list[yamlfile.Path] = [("common", name) for name in matrix.common]
    pinned += [("stacks", torch, name) for torch, pins in matrix.stacks.items() for name in pins]
    for path in pinned:
        name = str(path[-1])
        if canonicalize_name(name) != name:
            cause = f"write {name!r} as {canonicalize_name(name)!r}"
            yield Problem(where=file.where(path), cause=cause, then=advice(file))
        elif name not in layered:
            cause = f"no layer installs {name!r}"
            yield Problem(where=file.where(path), cause=cause, then="name it under `layers`")


def _stacks(matrix: Matrix, file: YamlFile, left_out: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    for torch, pins in matrix.stacks.items():
        if "torch" not in pins and ("stacks", torch, "torch") not in left_out:
            yield Problem(where=file.where(("stacks", torch)), cause="has no torch", then="pin torch in it")
        elif "torch" in pins and str(Minor.parse(pins["torch"])) != torch:
            where, cause = file.where(("stacks", torch, "torch")), f"torch {pins['torch']} is no {torch}"
            yield Problem(where=where, cause=cause, then=advice(file))


def _optional(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    layered = {name for names in matrix.layers.values() for name in names}
    for index, name in enumerate(matrix.optional):
        if name not in layered:
            cause = f"no layer installs {name!r}, so no image can lack it"
            yield Problem(where=file.where(("optional", index)), cause=cause, then="name it under `layers`")


def _left_out_in_vain(matrix: Matrix, file: YamlFile, left_out: frozenset[yamlfile.Path]) -> Iterator[Problem]:
    """Names under `without` that the image's stack does not pin: a typo would leave in what was to be left out."""
    raw = {str(item.get("name")): index for index, item in enumerate(file.data["images"]) if isinstance(item, dict)}
    for row in (row for row in matrix.images if row.without):
        torch = str(ImageName.parse(row.name).torch)
        pins = {**matrix.common, **matrix.stacks.get(torch, {})}
        for name in row.without:
            if torch in matrix.stacks and name not in pins and ("stacks", torch, name) not in left_out:
                cause = f"{row.name} leaves out {name!r}, which its stack does not pin"
                yield Problem(where=file.where(("images", raw.get(row.name, 0))), cause=cause, then=advice(file))


def _nightly_in_vain(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    """Ranges for what nothing pins, and layers that there are not: a typo would let a canary take anything."""
    profiles = matrix.profiles.values()
    pinned = {name for names in matrix.layers.values() for name in names}
    pinned |= {
        name for profile in profiles for pins in (*profile.stacks.values(), {*profile.optional}) for name in pins
    }
    ranges: list[yamlfile.Path] = [("nightly", "ranges", name) for name in matrix.nightly.ranges]
    ranges += [("nightly", "stacks", torch, name) for torch, rows in matrix.nightly.stacks.items() for name in rows]
    for path in ranges:
        if path[-1] not in pinned:
            yield Problem(where=file.where(path), cause=f"nothing pins {str(path[-1])!r}", then=advice(file))
    for torch in matrix.nightly.stacks:
        if torch not in matrix.stacks:
            cause = f"there is no stack for torch {torch}"
            yield Problem(where=file.where(("nightly", "stacks", torch)), cause=cause, then=advice(file))
    for index, layer in enumerate(matrix.nightly.held):
        if layer not in matrix.layers:
            cause = f"there is no layer {layer!r} (there are {', '.join(matrix.layers)})"
            yield Problem(where=file.where(("nightly", "held", index)), cause=cause, then=advice(file))


def _aliases(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    names = {row.name for row in matrix.images}
    for alias in matrix.aliases:
        if alias in names:
            cause = f"the alias {alias!r} is the name of an image"
            yield Problem(where=file.where(("aliases", alias)), cause=cause, then="rename the alias")


def _twice(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    first: dict[str, int] = {}
    raw = file.data.get("images", [])
    for index, item in enumerate(raw if isinstance(raw, list) else []):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            continue
        if name in first:
            cause = f"{name} stands twice (first at {file.where(('images', first[name]))})"
            yield Problem(where=file.where(("images", index)), cause=cause, then="keep one of the two")
        first.setdefault(name, index)
    owners: dict[str, str] = {}
    for layer, names in matrix.layers.items():
        for position, name in enumerate(names):
            if name in owners:
                cause = f"{name!r} is in two layers, {owners[name]} and {layer}"
                yield Problem(where=file.where(("layers", layer, position)), cause=cause, then="keep one of the two")
            owners.setdefault(name, layer)
