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

from images.config import paths, selectors, yamlfile
from images.config.facts import Facts
from images.config.names import Arch, Minor
from images.config.platforms import Platform
from images.config.schema import Matrix, Profile
from images.config.yamlfile import YamlFile, fix, validated
from images.errors import Problem, UserError, command, wrong
from validate.installation import by_installation

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
        """Hash what matrix.yaml and facts.yaml say of the images for linux/amd64.

        Every image has this hash as a label. Settings that are in none of these images are left
        out, so that a change of them does not change the images' digests.
        """
        # Leave out what changes no image: `nightly`; `prefix`, which is part of the name in the
        # engine; and `indexes` and `custom`, which show in the lock and in the base's reference.
        # `__all__` is pydantic's word for every row of a list or mapping.
        excluded: dict[str, Any] = {
            "nightly": True,
            "prefix": True,
            "indexes": True,
            "bases": {"__all__": {"custom"}},
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
    """Read matrix.yaml and facts.yaml, and return both with the folders beside the matrix.

    `matrix` and `facts` are their paths; the default of `matrix` is the checkout's matrix.yaml.
    Raises UserError with all wrong keys and values of a file at once. If there are none, it has all
    names in the matrix that are there twice or point at nothing.
    """
    matrix = matrix or MATRIX
    loaded_facts = load_facts(facts)
    file = yamlfile.parse(paths.shown(matrix), _read(matrix))
    loaded_matrix = validated(Matrix, file, _PAGE)
    problems = list(find_inconsistencies(loaded_matrix, file, loaded_facts))
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
    except IsADirectoryError:
        then = "name the file in it, or another one, with --matrix"
        raise wrong(paths.shown(path), "is a folder, and no file", then) from None
    except FileNotFoundError:
        then = by_installation(
            checkout=f"`git checkout {path.name}`",
            installed=f"`{command('init')}` writes one here; or go to the folder that has yours",
        )
        then += ", or name another file with --matrix"
        raise wrong(paths.shown(path), "is missing", then) from None
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(
            paths.shown(path),
            f"the file can't be read: {error}",
            "save it as text in UTF-8, in a place where this user may read it",
        ) from None


class Fault(NamedTuple):
    """Something in matrix.yaml that contradicts another place of it."""

    path: yamlfile.Path
    """The keys that lead to it: `("stacks", "2.7", "torch")`."""
    cause: str
    then: str = ""
    """What to do about it; empty: fix the file."""


def find_inconsistencies(matrix: Matrix, file: YamlFile, facts: Facts) -> Iterator[Problem]:
    """Yield problems of matrix.yaml that types can't find, such as names that mean nothing.

    `file` is the file of the matrix, which has the line numbers. `facts` has the architectures.
    """
    faults = [
        *_check_duplicates(matrix, file),
        *_check_base(matrix),
        *_check_indexes(matrix),
        *_check_layered_names(matrix),
        *_check_torch_of_stacks(matrix),
        *_check_layers_pinned(matrix),
        *_check_without(matrix),
        *_check_aliases(matrix),
        *_check_tracked(matrix),
        *_check_conditions(matrix, facts),
        *_check_nightly_ranges(matrix),
        *_check_nightly_names(matrix),
        *_check_profiles(matrix),
        *_check_extensions(matrix),
    ]
    for fault in faults:
        # Without a next step of its own, a fault gets a general one, which names a page of docs.
        then = fault.then or fix(file, _PAGE)
        yield Problem(where=file.where(fault.path), cause=fault.cause, then=then)


def _check_duplicates(matrix: Matrix, file: YamlFile) -> Iterator[Fault]:
    """Yield a fault for each image that is listed twice, and each package that two layers install.

    A package that one layer names twice is also a fault.
    """
    # Name of an image -> the index of its first row.
    first_rows: dict[str, int] = {}
    for index, row in enumerate(matrix.images):
        if row.name in first_rows:
            first_place = file.where(("images", first_rows[row.name]))
            cause = f"{row.name} stands twice (first at {first_place})"
            yield Fault(("images", index), cause, "keep one of the two")
        first_rows.setdefault(row.name, index)

    # Distribution -> the first layer that installs it.
    first_layers: dict[str, str] = {}
    for layer, names in matrix.layers.items():
        for index, name in enumerate(names):
            first_layer = first_layers.setdefault(name, layer)
            is_twice_in_layer = name in names[:index]
            if first_layer != layer or is_twice_in_layer:
                places = f"two layers, {first_layer} and {layer}"
                if is_twice_in_layer:
                    places = f"layer {layer} twice"
                cause = f"{name!r} is in {places}"
                yield Fault(("layers", layer, index), cause, "keep one of the two")


def _check_base(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault if the default base is no row of `bases`."""
    base = matrix.defaults.base
    if base not in matrix.bases:
        cause = f"there is no base {base!r} (there are {', '.join(matrix.bases)})"
        yield Fault(("defaults", "base"), cause)


def _check_indexes(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each package of private indexes that is listed twice, or taken elsewhere.

    It is taken elsewhere if another key of the matrix says where it comes from. Names that are not
    spelled canonically (PEP 503) are faults, too.
    """
    # Package -> the key of the matrix by which it would come from elsewhere.
    keys_elsewhere = _keys_elsewhere(matrix)
    # Package -> the first index that names it.
    first_indexes: dict[str, str] = {}
    for index_name, row in matrix.indexes.items():
        for number, name in enumerate(row.packages):
            path = ("indexes", index_name, "packages", number)
            canonical = canonicalize_name(name)
            if canonical != name:
                yield Fault(path, f"write {name!r} as {canonical!r}")
            elif name in first_indexes:
                cause = f"{name!r} stands twice (first in {first_indexes[name]})"
                yield Fault(path, cause, "keep one of the two")
            elif name in keys_elsewhere:
                cause = f"{name!r} is also under `{keys_elsewhere[name]}`"
                yield Fault(path, cause, "name it in one of the two only")
            first_indexes.setdefault(name, index_name)


def _keys_elsewhere(matrix: Matrix) -> dict[str, str]:
    """Return the packages that no private index may be named for: package -> key in the matrix.

    That key says already where the package comes from: `toolkits` and `overrides` from the default
    index, `sources` from a compiler, `optional` from a file, and so on. If a package stands under
    several keys, the last one of these here is returned.
    """
    # Name of a package as it is written -> key.
    keys = {}
    for toolkit in matrix.toolkits.values():
        for requirement in (*toolkit.parts, *toolkit.devel):
            keys[requirement.partition("==")[0]] = "toolkits"
    for overrides in matrix.overrides.values():
        for requirement in overrides:
            keys[requirement.partition("==")[0]] = "overrides"
    for profile in matrix.profiles.values():
        # A waived package is left out, or is there in another version than required: name -> why.
        for reasons in profile.waived.values():
            keys |= dict.fromkeys(reasons, "waived")
    for row_name, row in matrix.sources.items():
        keys[row.distribution or row_name] = "sources"
    keys |= dict.fromkeys(matrix.optional, "optional")
    keys |= dict.fromkeys(matrix.pure_python, "pure_python")
    return {str(canonicalize_name(name)): key for name, key in keys.items()}


def _check_layered_names(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each package of the matrix that no layer of an image installs.

    Looked at are the packages under `common`, `stacks`, `optional` and `waived`. Pins with a name
    that is not canonical are faults, too.
    """
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
    # A row of `waived` is for the images that have its distribution. Without a layer, no image has
    # it, and the row would do nothing.
    for name in matrix.waived:
        if name not in layered:
            then = "name a distribution of `layers`, or take it out"
            cause = f"{name!r} is waived here, and no layer installs it"
            yield Fault(("waived", name), cause, then)


def _check_layers_pinned(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each package of a layer that nothing pins (gives a version).

    No image would get such a package. Pins stand under `common`, in the stacks (the pins for one
    torch minor), and in the profiles.
    """
    pinned = set(matrix.common)
    for pins in matrix.stacks.values():
        pinned.update(pins)
    for profile in matrix.profiles.values():
        pinned.update(profile.optional)
        for pins in profile.stacks.values():
            pinned.update(pins)
    for layer, names in matrix.layers.items():
        for index, name in enumerate(names):
            if name not in pinned:
                cause = f"{name!r} has no version anywhere, so no image gets it"
                then = "write its version into `common`, or into the stacks that shall have it"
                yield Fault(("layers", layer, index), cause, then)


def _check_torch_of_stacks(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each stack that pins no torch, or one of another minor than its own."""
    for torch, pins in matrix.stacks.items():
        if "torch" not in pins:
            yield Fault(("stacks", torch), f"the stack {torch} has no torch", "pin torch in it")
        elif str(Minor.parse(pins["torch"])) != torch:
            yield Fault(
                ("stacks", torch, "torch"), f"torch {pins['torch']} is no release of {torch}"
            )


def _check_pin(path: yamlfile.Path, name: str, layered: set[str]) -> Iterator[Fault]:
    """Yield a fault if a pin's name is not canonical (PEP 503), or if no layer installs it."""
    canonical = canonicalize_name(name)
    if canonical != name:
        yield Fault(path, f"write {name!r} as {canonical!r}")
    elif name not in layered:
        cause = f"{name!r} is pinned here, and no layer installs it"
        yield Fault(path, cause, "name it in a layer under `layers`, or take this line out")


def _check_without(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each package that an image leaves out (`without`) but nothing pins.

    What is pinned is the stack of the image's torch, and versions that replace what packages
    require (`overrides`). A typo below `without` would keep a package that was to be left out.
    """
    for index, row in enumerate(matrix.images):
        torch = str(row.image_name.torch)
        # The plan refuses images without a stack, and says so.
        if torch not in matrix.stacks:
            continue
        pinned = {*matrix.common, *matrix.stacks[torch]}
        for requirement in matrix.overrides.get(torch, {}):
            pinned.add(requirement.partition("==")[0])
        for name in row.without:
            if name not in pinned:
                cause = f"{row.name} leaves out {name!r}, which its stack does not pin"
                yield Fault(("images", index), cause)


def _check_aliases(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each alias that is itself the name of an image, or that leads to none.

    An alias is a short name for an image: `latest: cu130-torch29`.
    """
    image_names = _image_names(matrix)
    for alias, name in matrix.aliases.items():
        if alias in image_names:
            cause = f"the alias {alias!r} is the name of an image"
            yield Fault(("aliases", alias), cause, "rename the alias")
        if name not in image_names:
            cause = f"the alias {alias!r} names {name}, which is not in `images`"
            # The cutoff is low, so that there are always some names to offer.
            close = get_close_matches(name, image_names, cutoff=0.1)
            yield Fault(("aliases", alias), cause, f"name one of {', '.join(close)}")


def _check_tracked(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each name or glob under `nightly.track` that matches no image.

    A typo there would silently leave an image out of nightly runs. Conditions such as `torch>=2.8`
    may match none; `_check_conditions` looks at their values.
    """
    image_names = _image_names(matrix)
    for index, text in enumerate(matrix.nightly.track):
        selector = selectors.parse(text)
        is_condition = bool(selector.key)
        if not is_condition and not fnmatch.filter(image_names, text):
            # The same words as on the command line.
            problem = selectors.unmatched(text, image_names).problems[0]
            yield Fault(("nightly", "track", index), f"{text} {problem.cause}", problem.then)


def _check_conditions(matrix: Matrix, facts: Facts) -> Iterator[Fault]:
    """Yield a fault for each condition, such as `arch=sm91`, whose value does not exist.

    Conditions are the texts under `exclude` and `nightly.track` that select images. With a typo in
    its value, an exclusion would silently exclude nothing. Conditions with other keys than arch,
    platform and profile are not checked here.
    """
    # The architectures that some CUDA toolkit compiles for.
    archs: set[Arch] = set()
    for row in facts.cuda.values():
        archs.update(Arch.parse(capability) for capability in row.nvcc_archs)
    # Key of a condition -> all values that it can have.
    names: dict[str, list[str]] = {
        "arch": [str(arch) for arch in sorted(archs)],
        "platform": [],
        "profile": [selectors.NO_PROFILE, *matrix.profiles],
    }
    for platform in Platform:
        names["platform"] += selectors.names_of_platform(platform)

    # The place in the file of each selector, and its text.
    texts: list[tuple[yamlfile.Path, str]] = []
    for index, exclusion in enumerate(matrix.exclude):
        texts.append((("exclude", index, "select"), exclusion.select))
    for index, text in enumerate(matrix.nightly.track):
        texts.append((("nightly", "track", index), text))

    for path, text in texts:
        selector = selectors.parse(text)
        if selector.key in names and selector.wanted not in names[selector.key]:
            cause = f"{text}: there is no {selector.key} {selector.wanted!r}"
            then = f"{selector.key} is one of: {', '.join(names[selector.key])}"
            yield Fault(path, cause, then)


def _image_names(matrix: Matrix) -> list[str]:
    """Return the names of all images of the matrix, for each of their platforms."""
    image_names: list[str] = []
    for row in matrix.images:
        image_names += [str(name) for name in row.names()]
    return image_names


def _check_nightly_ranges(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each package under `ranges` and `stacks` of `nightly` that nothing pins.

    Both limit the versions that a nightly build may take. A misspelled package would have no limit.
    """
    pinned = matrix.layered_packages()
    for profile in matrix.profiles.values():
        pinned.update(profile.optional)
        for pins in profile.stacks.values():
            pinned.update(pins)

    # The place in the file of each range; its last key is the distribution.
    paths_of_ranges: list[yamlfile.Path] = []
    for name in matrix.nightly.ranges:
        paths_of_ranges.append(("nightly", "ranges", name))
    for torch, ranges_of_torch in matrix.nightly.stacks.items():
        for name in ranges_of_torch:
            paths_of_ranges.append(("nightly", "stacks", torch, name))

    for path in paths_of_ranges:
        if path[-1] not in pinned:
            yield Fault(path, f"nothing pins {str(path[-1])!r}")


def _check_nightly_names(matrix: Matrix) -> Iterator[Fault]:
    """Yield a fault for each torch minor under `nightly` without a stack, and each unknown layer.

    A stack is the set of pins for one torch minor. Under `nightly`, `stacks` and `kept` have a key
    for some of these minors: ranges of versions, and minors that stay at their pins for a time.
    `held` lists layers that stay as they are locked.
    """
    nightly = matrix.nightly
    for key, minors in (("stacks", [*nightly.stacks]), ("kept", [*nightly.kept])):
        for torch in minors:
            if torch not in matrix.stacks:
                yield Fault(("nightly", key, torch), f"there is no stack for torch {torch}")
    for index, layer in enumerate(nightly.held):
        if layer not in matrix.layers:
            cause = f"there is no layer {layer!r} (there are {', '.join(matrix.layers)})"
            yield Fault(("nightly", "held", index), cause)


def _check_profiles(matrix: Matrix) -> Iterator[Fault]:
    """Yield the faults of all profiles: in their names, and in what they extend, pin and waive.

    A profile is a set of packages for a framework. What it waives, a package requires and the image
    lacks, or has in another version.
    """
    for name, profile in matrix.profiles.items():
        place: yamlfile.Path = ("profiles", name)
        yield from _check_names_of_profile(place, profile)

        # A profile may extend one that extends no other: `with_parent` looks no further up.
        parent = matrix.profiles.get(profile.extends)
        if profile.extends and (parent is None or parent.extends):
            why = "extends another one itself" if parent else "is no profile"
            cause = f"the profile {name} extends {profile.extends!r}, which {why}"
            yield Fault((*place, "extends"), cause, "extend a profile that extends no other")
        for torch in profile.stacks:
            yield from _check_stack_of_profile(place, profile, torch, matrix)

        for torch in profile.waived:
            if torch not in profile.stacks:
                cause = f"the profile has no pins for torch {torch}"
                yield Fault((*place, "waived", torch), cause, "take it out")


def _check_stack_of_profile(
    place: yamlfile.Path, profile: Profile, torch: str, matrix: Matrix
) -> Iterator[Fault]:
    """Yield the faults in what a profile of matrix.yaml says for one minor release of torch.

    `stacks` must have versions for that release, and the profile must not name another torch than
    they do. A profile that it extends must have something for the release, too. `place` is the path
    of the profile in the file.
    """
    path = (*place, "stacks", torch)
    pins = profile.stacks[torch]
    stack = matrix.stacks.get(torch)
    if stack is None:
        cause = f"there is no stack for torch {torch}"
        yield Fault(path, cause, "name a torch of `stacks`")
    elif "torch" in pins and pins["torch"] != stack.get("torch"):
        cause = "a profile shares its torch with the stack"
        yield Fault((*path, "torch"), cause, "take it out")

    parent = matrix.profiles.get(profile.extends)
    if parent and torch not in parent.stacks:
        cause = f"extends {profile.extends}, which has nothing for torch {torch}"
        yield Fault(path, cause, "pin it there too")


def _check_names_of_profile(place: yamlfile.Path, profile: Profile) -> Iterator[Fault]:
    """Yield a fault for each package of a profile whose name is not canonical (PEP 503).

    `place` is the path of the profile in the file.
    """
    # The path of each name below the profile; its last key is the name.
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
    """Yield a fault for each extension of a profile that can't be made.

    An extension names a row of `sources`, by which a package is compiled. It can't be made if there
    is no such row, or if the profile does not pin the package.
    """
    for name, profile in matrix.profiles.items():
        # An extension may belong to a package that only the extended profile pins.
        pinned: set[str] = set()
        for profile_or_parent in matrix.with_parent(name):
            for pins in profile_or_parent.stacks.values():
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
