"""matrix.yaml and facts.yaml into typed, validated objects. Errors of a kind at once, each with file and line."""

import fnmatch
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from images import errors
from images.config import paths, selectors, yamlfile
from images.config.facts import Facts
from images.config.names import Minor
from images.config.platforms import Platform
from images.config.schema import Matrix
from images.config.yamlfile import YamlFile, fix, validated
from images.errors import Problem, UserError, wrong

MATRIX = paths.RESOURCES / paths.MATRIX_NAME
FACTS = paths.DATA / "facts.yaml"
_PAGE = "docs/matrix.md"
"""Explains the keys of both files."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Both files, loaded: what every plan is made from. Compared and hashed by identity."""

    matrix: Matrix
    facts: Facts
    workspace: paths.Workspace = paths.CHECKOUT

    @cached_property
    def revision(self) -> str:
        """Short hash of what images are made from, in matrix and facts; comments and order of keys do not change it.

        Of linux/amd64: what other platforms add stands in none of its images, and moves none of their digests.
        """
        left_out: dict[str, Any] = dict.fromkeys(("nightly", "prefix"), True)
        left_out["images"] = {"__all__": {"platforms"}}
        content = json.dumps(
            [self.matrix.model_dump(exclude=left_out), self.facts.model_dump(exclude={"arm64"})],
            sort_keys=True,
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def revision_on(self, platform: Platform) -> str:
        """The same for the images of a platform."""
        if platform is Platform.AMD64:
            return self.revision
        content = json.dumps(
            [self.revision, str(platform), self.facts.arm64.model_dump()], sort_keys=True
        )
        return hashlib.sha256(content.encode()).hexdigest()[:12]


def load(matrix: Path | None = None, facts: Path = FACTS) -> Sources:
    """Read both files; without `matrix`, the checkout's. Raises UserError.

    The error has every key and value that is wrong; where there are none, every name that points at nothing.
    """
    matrix = matrix or MATRIX
    known, matrix_file = load_facts(facts), yamlfile.parse(paths.shown(matrix), _read(matrix))
    wanted = validated(Matrix, matrix_file, _PAGE)
    problems = list(inconsistent(wanted, matrix_file))
    if problems:
        raise UserError(problems)
    return Sources(wanted, known, paths.Workspace(matrix.absolute()))


def load_facts(facts: Path = FACTS) -> Facts:
    """The facts alone, which come with the code. Raises UserError."""
    return validated(Facts, yamlfile.parse(paths.shown(facts), _read(facts)), _PAGE)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        here = (
            f"`git checkout {path.name}`"
            if errors.IS_CHECKOUT
            else f"go to the folder that has your {path.name}"
        )
        raise wrong(
            paths.shown(path), "is missing", f"{here}, or name another one with --matrix"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(paths.shown(path), f"can't be read: {error}", "fix the file") from None


Fault = tuple[yamlfile.Path, str, str]
"""Where, why, and what to do about it (empty: fix the file)."""


def inconsistent(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    """What the types can't say: names that stand twice, or point at nothing."""
    faults = [*_twice(matrix, file), *_stacks(matrix), *_images(matrix), *_nightly(matrix)]
    for path, cause, then in (*faults, *_profiles(matrix), *_extensions(matrix)):
        yield Problem(where=file.where(path), cause=cause, then=then or fix(file, _PAGE))


def _twice(matrix: Matrix, file: YamlFile) -> Iterator[Fault]:
    first: dict[str, int] = {}
    for index, row in enumerate(matrix.images):
        if row.name in first:
            cause = f"{row.name} stands twice (first at {file.where(('images', first[row.name]))})"
            yield ("images", index), cause, "keep one of the two"
        first.setdefault(row.name, index)
    owners: dict[str, str] = {}
    for layer, names in matrix.layers.items():
        for position, name in enumerate(names):
            if owners.setdefault(name, layer) != layer or name in names[:position]:
                cause = f"{name!r} is in two layers, {owners[name]} and {layer}"
                yield ("layers", layer, position), cause, "keep one of the two"


def _stacks(matrix: Matrix) -> Iterator[Fault]:
    """Pins that no layer installs, stacks without their torch, a base that is none."""
    base = matrix.defaults.base
    if base not in matrix.bases:
        yield (
            ("defaults", "base"),
            f"there is no base {base!r} (there are {', '.join(matrix.bases)})",
            "",
        )
    layered = {name for names in matrix.layers.values() for name in names}
    pinned: list[yamlfile.Path] = [("common", name) for name in matrix.common]
    pinned += [("stacks", torch, name) for torch, pins in matrix.stacks.items() for name in pins]
    for path in pinned:
        name = str(path[-1])
        if canonicalize_name(name) != name:
            yield path, f"write {name!r} as {canonicalize_name(name)!r}", ""
        elif name not in layered:
            yield path, f"no layer installs {name!r}", "name it under `layers`"
    for index, name in enumerate(matrix.optional):
        if name not in layered:
            yield (
                ("optional", index),
                f"no layer installs {name!r}, so no image can lack it",
                "name it under `layers`",
            )
    for name in (
        matrix.waived
    ):  # what is left out with a distribution that no image has is left out nowhere
        if name not in layered:
            yield (
                ("waived", name),
                f"no layer installs {name!r}",
                "name a distribution of `layers`, or take it out",
            )
    for torch, pins in matrix.stacks.items():
        if "torch" not in pins:
            yield ("stacks", torch), "has no torch", "pin torch in it"
        elif str(Minor.parse(pins["torch"])) != torch:
            yield ("stacks", torch, "torch"), f"torch {pins['torch']} is no {torch}", ""


def _images(matrix: Matrix) -> Iterator[Fault]:
    """Names under `without` that neither stack nor overrides have: a typo would leave in what was to be left out.

    And what names images elsewhere: what a selector without a match was to name would be left out without a word.
    """
    for index, row in enumerate(matrix.images):
        torch = str(row.image_name.torch)
        replaced = {one.partition("==")[0] for one in matrix.overrides.get(torch, {})}
        pins = {*matrix.common, *matrix.stacks.get(torch, {}), *replaced}
        for name in row.without:
            if torch in matrix.stacks and name not in pins:
                cause = f"{row.name} leaves out {name!r}, which its stack does not pin"
                yield ("images", index), cause, ""
    names = [str(name) for row in matrix.images for name in row.names()]
    for alias, name in matrix.aliases.items():
        if alias in names:
            yield (
                ("aliases", alias),
                f"the alias {alias!r} is the name of an image",
                "rename the alias",
            )
        if name not in names:
            near = f"name one of {', '.join(get_close_matches(name, names, cutoff=0.1))}"
            yield (
                ("aliases", alias),
                f"the alias {alias!r} names {name}, which is not in `images`",
                near,
            )
    for index, text in enumerate(matrix.nightly.track):
        selector = selectors.parse(text)
        if not selector.key and not fnmatch.filter(names, text):
            (problem,) = selectors.unmatched(selector, names).problems
            yield ("nightly", "track", index), f"{text} {problem.cause}", problem.then


def _nightly(matrix: Matrix) -> Iterator[Fault]:
    """Ranges for what nothing pins, and layers that there are not: a typo would let a canary take anything."""
    pinned = {name for names in matrix.layers.values() for name in names}
    for profile in matrix.profiles.values():
        pinned |= {*profile.optional, *(name for pins in profile.stacks.values() for name in pins)}
    ranges: list[yamlfile.Path] = [("nightly", "ranges", name) for name in matrix.nightly.ranges]
    ranges += [
        ("nightly", "stacks", torch, name)
        for torch, rows in matrix.nightly.stacks.items()
        for name in rows
    ]
    for path in ranges:
        if path[-1] not in pinned:
            yield path, f"nothing pins {str(path[-1])!r}", ""
    for key, minors in (("stacks", matrix.nightly.stacks), ("kept", matrix.nightly.kept)):
        for torch in (one for one in minors if one not in matrix.stacks):
            yield ("nightly", key, torch), f"there is no stack for torch {torch}", ""
    for index, layer in enumerate(matrix.nightly.held):
        if layer not in matrix.layers:
            cause = f"there is no layer {layer!r} (there are {', '.join(matrix.layers)})"
            yield ("nightly", "held", index), cause, ""


def _profiles(matrix: Matrix) -> Iterator[Fault]:
    for name, profile in matrix.profiles.items():
        at: yamlfile.Path = ("profiles", name)
        pins = [("stacks", torch, pin) for torch, row in profile.stacks.items() for pin in row]
        pins += [("waived", torch, pin) for torch, row in profile.waived.items() for pin in row]
        for path in [*pins, *(("optional", pin) for pin in profile.optional)]:
            if canonicalize_name(path[-1]) != path[-1]:
                yield (*at, *path), f"write {path[-1]!r} as {canonicalize_name(path[-1])!r}", ""
        parent = matrix.profiles.get(profile.extends)
        if profile.extends and (parent is None or parent.extends):
            cause = f"extends {profile.extends!r}, which is no profile, or extends one itself"
            yield (*at, "extends"), cause, "extend a profile that stands alone"
        for torch, row in profile.stacks.items():
            own = matrix.stacks.get(torch, {}).get("torch")
            if torch not in matrix.stacks:
                yield (
                    (*at, "stacks", torch),
                    f"there is no stack for torch {torch}",
                    "name a torch of `stacks`",
                )
            elif row.get("torch", own) != own:
                yield (
                    (*at, "stacks", torch, "torch"),
                    "a profile shares its torch with the stack",
                    "take it out",
                )
            if parent and torch not in parent.stacks:
                cause = f"extends {profile.extends}, which has nothing for torch {torch}"
                yield (*at, "stacks", torch), cause, "pin it there too"
        for torch in {*profile.waived} - {*profile.stacks}:
            yield (
                (*at, "waived", torch),
                f"the profile has no pins for torch {torch}",
                "take it out",
            )


def _extensions(matrix: Matrix) -> Iterator[Fault]:
    """Each extension of a profile is a row of `sources`, and makes a package that the profile pins."""
    for name, profile in matrix.profiles.items():
        pinned = {pin for one in matrix.line(name) for pins in one.stacks.values() for pin in pins}
        at = ("profiles", name, "extensions")
        for index, row in enumerate(profile.extensions):
            if row not in matrix.sources:
                yield (*at, index), f"{row!r} is no row of `sources`", "name one that is"
            elif (made := matrix.sources[row].distribution or row) not in pinned:
                yield (*at, index), f"{row} makes {made}, which the profile does not pin", "pin it"
