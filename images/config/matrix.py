"""Loads matrix.yaml and facts.yaml into typed objects, and reports what is wrong in them.

Errors of one kind are reported all at once, each with file and line.
"""

import fnmatch
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from images import errors
from images.config import paths, selectors, yamlfile
from images.config.facts import Facts
from images.config.names import Minor
from images.config.platforms import Platform
from images.config.schema import Matrix, Profile
from images.config.yamlfile import YamlFile, fix, validated
from images.errors import Problem, UserError, wrong

MATRIX = paths.RESOURCES / paths.MATRIX_NAME
FACTS = paths.DATA / "facts.yaml"
_PAGE = "docs/matrix.md"
"""The page that explains the keys of both files."""


@dataclass(frozen=True, eq=False)
class Sources:
    """Matrix and facts, from which every plan is made. Compared and hashed by identity."""

    matrix: Matrix
    facts: Facts
    workspace: paths.Workspace = paths.CHECKOUT

    @cached_property
    def revision(self) -> str:
        """A short hash of what images for linux/amd64 are made from, in matrix and facts.

        Comments and the order of keys don't change it, and neither does what is said of other
        platforms: that is in none of these images, and must not change their digests.
        """
        # pydantic's form: whole keys, and the key `platforms` of all rows of `images`.
        excluded: dict[str, Any] = {
            "nightly": True,
            "prefix": True,
            "images": {"__all__": {"platforms"}},
        }
        matrix = self.matrix.model_dump(exclude=excluded)
        facts = self.facts.model_dump(exclude={"arm64"})
        return _short_hash([matrix, facts])

    def revision_on(self, platform: Platform) -> str:
        """Return the revision of the images of a platform: for arm64, its own facts count, too."""
        if platform is Platform.AMD64:
            return self.revision
        return _short_hash([self.revision, str(platform), self.facts.arm64.model_dump()])


def _short_hash(content: list[Any]) -> str:
    """Return the first twelve digits of the sha256 of plain data."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def load(matrix: Path | None = None, facts: Path = FACTS) -> Sources:
    """Read both files; the default of `matrix` is the checkout's matrix.yaml.

    Raises UserError with every wrong key and value of a file at once. If there are none, it has
    every name in the matrix that stands twice or points at nothing.
    """
    matrix = matrix or MATRIX
    loaded_facts = load_facts(facts)
    file = yamlfile.parse(paths.shown(matrix), _read(matrix))
    loaded_matrix = validated(Matrix, file, _PAGE)
    problems = list(find_inconsistencies(loaded_matrix, file))
    if problems:
        raise UserError(problems)
    return Sources(loaded_matrix, loaded_facts, paths.Workspace(matrix.absolute()))


def load_facts(facts: Path = FACTS) -> Facts:
    """Read facts.yaml, which comes with the code. Raises UserError with all that is wrong in it."""
    return validated(Facts, yamlfile.parse(paths.shown(facts), _read(facts)), _PAGE)


def _read(path: Path) -> str:
    """Return the text of a file. Raises UserError if it is missing or can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if errors.IS_CHECKOUT:
            then = f"`git checkout {path.name}`"
        else:
            then = f"go to the folder that has your {path.name}"
        then += ", or name another one with --matrix"
        raise wrong(paths.shown(path), "is missing", then) from None
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(paths.shown(path), f"can't be read: {error}", "fix the file") from None


class Fault(NamedTuple):
    """Something in matrix.yaml that contradicts another place of it."""

    path: yamlfile.Path
    """The keys that lead to it: `("stacks", "2.7", "torch")`."""
    cause: str
    then: str = ""
    """What to do about it; empty: fix the file."""


def find_inconsistencies(matrix: Matrix, file: YamlFile) -> Iterator[Problem]:
    """Yield names that stand twice or point at nothing, which types can't find.

    `file` is the file of the matrix, which has the line numbers.
    """
    faults = [
        *_check_duplicates(matrix, file),
        *_check_stacks(matrix),
        *_check_images(matrix),
        *_check_nightly(matrix),
        *_check_profiles(matrix),
        *_check_extensions(matrix),
    ]
    for fault in faults:
        then = fault.then or fix(file, _PAGE)
        yield Problem(where=file.where(fault.path), cause=fault.cause, then=then)


def _check_duplicates(matrix: Matrix, file: YamlFile) -> Iterator[Fault]:
    """Yield images that stand twice, and distributions that two layers install."""
    first_row: dict[str, int] = {}
    for index, row in enumerate(matrix.images):
        if row.name in first_row:
            first = file.where(("images", first_row[row.name]))
            cause = f"{row.name} stands twice (first at {first})"
            yield Fault(("images", index), cause, "keep one of the two")
        first_row.setdefault(row.name, index)

    layer_of: dict[str, str] = {}
    for layer, names in matrix.layers.items():
        for index, name in enumerate(names):
            owner = layer_of.setdefault(name, layer)
            # The second condition: one layer may name it twice.
            if owner != layer or name in names[:index]:
                cause = f"{name!r} is in two layers, {owner} and {layer}"
                yield Fault(("layers", layer, index), cause, "keep one of the two")


def _check_stacks(matrix: Matrix) -> Iterator[Fault]:
    """Yield faults of the default base, the pins, and the names under `optional` and `waived`.

    A distribution must be one that a layer installs, and a stack must pin a torch of its minor.
    """
    base = matrix.defaults.base
    if base not in matrix.bases:
        cause = f"there is no base {base!r} (there are {', '.join(matrix.bases)})"
        yield Fault(("defaults", "base"), cause)

    layered = matrix.layered_packages()
    for name in matrix.common:
        yield from _check_pin(("common", name), name, layered)
    for torch, pins in matrix.stacks.items():
        for name in pins:
            yield from _check_pin(("stacks", torch, name), name, layered)

    for index, name in enumerate(matrix.optional):
        if name not in layered:
            cause = f"no layer installs {name!r}, so no image can lack it"
            yield Fault(("optional", index), cause, "name it under `layers`")
    # A row of `waived` counts in images with its distribution. If no image has it, the row would
    # do nothing.
    for name in matrix.waived:
        if name not in layered:
            then = "name a distribution of `layers`, or take it out"
            yield Fault(("waived", name), f"no layer installs {name!r}", then)

    for torch, pins in matrix.stacks.items():
        if "torch" not in pins:
            yield Fault(("stacks", torch), "has no torch", "pin torch in it")
        elif str(Minor.parse(pins["torch"])) != torch:
            yield Fault(("stacks", torch, "torch"), f"torch {pins['torch']} is no {torch}")


def _check_pin(path: yamlfile.Path, name: str, layered: set[str]) -> Iterator[Fault]:
    """Yield a pin whose name is not the canonical one (PEP 503), or that no layer installs."""
    canonical = canonicalize_name(name)
    if canonical != name:
        yield Fault(path, f"write {name!r} as {canonical!r}")
    elif name not in layered:
        yield Fault(path, f"no layer installs {name!r}", "name it under `layers`")


def _check_images(matrix: Matrix) -> Iterator[Fault]:
    """Yield names under `without`, `aliases` and `nightly.track` that mean nothing.

    A typo under `without` would keep a package that was to be left out, and one under `track` would
    silently leave an image out of nightly runs. An alias must not be an image's own name, either.
    """
    for index, row in enumerate(matrix.images):
        torch = str(row.image_name.torch)
        # The plan refuses images without a stack, and says so.
        if torch not in matrix.stacks:
            continue
        pins = {*matrix.common, *matrix.stacks[torch]}
        for requirement in matrix.overrides.get(torch, {}):
            pins.add(requirement.partition("==")[0])
        for name in row.without:
            if name not in pins:
                cause = f"{row.name} leaves out {name!r}, which its stack does not pin"
                yield Fault(("images", index), cause)

    image_names: list[str] = []
    for row in matrix.images:
        image_names += [str(name) for name in row.names()]
    for alias, name in matrix.aliases.items():
        if alias in image_names:
            cause = f"the alias {alias!r} is the name of an image"
            yield Fault(("aliases", alias), cause, "rename the alias")
        if name not in image_names:
            cause = f"the alias {alias!r} names {name}, which is not in `images`"
            close = get_close_matches(name, image_names, cutoff=0.1)
            yield Fault(("aliases", alias), cause, f"name one of {', '.join(close)}")

    for index, text in enumerate(matrix.nightly.track):
        selector = selectors.parse(text)
        if not selector.key and not fnmatch.filter(image_names, text):
            problem = selectors.unmatched(selector, image_names).problems[0]
            yield Fault(("nightly", "track", index), f"{text} {problem.cause}", problem.then)


def _check_nightly(matrix: Matrix) -> Iterator[Fault]:
    """Yield names under `nightly` that mean nothing: distributions, torch minors and layers.

    `ranges` and `stacks` limit the versions that a nightly build may take of a distribution: with a
    typo there, it would take any. `kept` has torch minors whose pins stay, and `held` has layers.
    """
    pinned = matrix.layered_packages()
    for profile in matrix.profiles.values():
        pinned.update(profile.optional)
        for pins in profile.stacks.values():
            pinned.update(pins)

    nightly = matrix.nightly
    # The place in the file of each range; its last key is the distribution.
    ranges: list[yamlfile.Path] = [("nightly", "ranges", name) for name in nightly.ranges]
    for torch, own_ranges in nightly.stacks.items():
        ranges += [("nightly", "stacks", torch, name) for name in own_ranges]
    for path in ranges:
        if path[-1] not in pinned:
            yield Fault(path, f"nothing pins {str(path[-1])!r}")

    for key, minors in (("stacks", [*nightly.stacks]), ("kept", [*nightly.kept])):
        for torch in minors:
            if torch not in matrix.stacks:
                yield Fault(("nightly", key, torch), f"there is no stack for torch {torch}")
    for index, layer in enumerate(nightly.held):
        if layer not in matrix.layers:
            cause = f"there is no layer {layer!r} (there are {', '.join(matrix.layers)})"
            yield Fault(("nightly", "held", index), cause)


def _check_profiles(matrix: Matrix) -> Iterator[Fault]:
    """Yield faults of profiles: names that are not canonical, and torch minors without a stack.

    A profile must not pin another torch than the stack. It may extend one other profile, which
    extends none itself and has pins for the same torch minors.
    """
    for name, profile in matrix.profiles.items():
        place: yamlfile.Path = ("profiles", name)
        yield from _check_names_of_profile(place, profile)

        parent = matrix.profiles.get(profile.extends)
        if profile.extends and (parent is None or parent.extends):
            cause = f"extends {profile.extends!r}, which is no profile, or extends one itself"
            then = "extend a profile that extends no other"
            yield Fault((*place, "extends"), cause, then)

        for torch, pins in profile.stacks.items():
            path = (*place, "stacks", torch)
            stack = matrix.stacks.get(torch)
            if stack is None:
                cause = f"there is no stack for torch {torch}"
                yield Fault(path, cause, "name a torch of `stacks`")
            elif "torch" in pins and pins["torch"] != stack.get("torch"):
                cause = "a profile shares its torch with the stack"
                yield Fault((*path, "torch"), cause, "take it out")
            if parent and torch not in parent.stacks:
                cause = f"extends {profile.extends}, which has nothing for torch {torch}"
                yield Fault(path, cause, "pin it there too")

        for torch in profile.waived:
            if torch not in profile.stacks:
                cause = f"the profile has no pins for torch {torch}"
                yield Fault((*place, "waived", torch), cause, "take it out")


def _check_names_of_profile(place: yamlfile.Path, profile: Profile) -> Iterator[Fault]:
    """Yield distributions of a profile that are not spelled canonically (PEP 503)."""
    paths_of_names: list[tuple[str, ...]] = []
    for torch, pins in profile.stacks.items():
        paths_of_names += [("stacks", torch, name) for name in pins]
    for torch, reasons in profile.waived.items():
        paths_of_names += [("waived", torch, name) for name in reasons]
    paths_of_names += [("optional", name) for name in profile.optional]

    for path in paths_of_names:
        name = path[-1]
        canonical = canonicalize_name(name)
        if canonical != name:
            yield Fault((*place, *path), f"write {name!r} as {canonical!r}")


def _check_extensions(matrix: Matrix) -> Iterator[Fault]:
    """Yield extensions of profiles that are no row of `sources`, or whose package is not pinned."""
    for name, profile in matrix.profiles.items():
        pinned: set[str] = set()
        for own_or_extended in matrix.with_parent(name):
            for pins in own_or_extended.stacks.values():
                pinned.update(pins)

        for index, extension in enumerate(profile.extensions):
            path = ("profiles", name, "extensions", index)
            source = matrix.sources.get(extension)
            if source is None:
                cause = f"{extension!r} is no row of `sources`"
                yield Fault(path, cause, "name one that is")
                continue
            # The row may be named otherwise than the package that it makes.
            package = source.distribution or extension
            if package not in pinned:
                cause = f"{extension} makes {package}, which the profile does not pin"
                yield Fault(path, cause, "pin it")
