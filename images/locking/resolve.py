"""Makes the lock of an image: uv resolves all packages at once, then they are split into layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from images.config.names import Minor
from images.errors import Problem, UserError, command
from images.locking import lock_file, uv
from images.locking.index_access import require_packages
from images.locking.inputs import LockInputs, Package, distribution, lock_inputs
from images.locking.lock_file import Lock
from images.locking.uv import IndexUnreachable, LoginRefused, Runner
from images.planning.image import Image
from validate.installation import by_installation


class Update(NamedTuple):
    """New locks, and the images that could not be locked because an index does not answer."""

    files: dict[str, bytes]
    """Path below the folder of locks -> content."""
    unreachable: dict[str, list[Problem]]
    """Index that does not answer -> a problem for each image that needs it."""


def update(
    images: Sequence[Image],
    others: Sequence[Image] = (),
    *,
    folder: Path,
    upgrade: bool = False,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> Update:
    """Make the locks of these images, and return their files without writing them.

    images: the images to lock.
    others: all other images of matrix.yaml. With `upgrade`, those that share a layer with one of
        `images` are locked again, too, so that the layer stays the same for both.
    folder: the folder of the present locks. Their versions stay where they still fit.
    upgrade: take the newest versions that fit instead.
    run: calls uv.
    tell: called with a line for each image.

    An index that does not answer is asked only once. Raises UserError with the problems of all
    images at once, or LoginRefused with that of the first one.
    """
    to_lock = {image.lock_name: image for image in images}
    present_locks: list[Lock] = []
    # uv reports an index that refuses the login as one that does not have the package.
    require_packages(chain.from_iterable(image.pins for image in images), command("lock"))
    if upgrade:
        for other in _find_sharing_images(others, images, folder):
            to_lock[other.lock_name] = other
    else:
        present_locks = _load_present_locks(others, folder)

    made: dict[str, Lock] = {}
    problems: list[Problem] = []
    unreachable: dict[str, list[Problem]] = {}
    # Packages of a profile allow fewer versions than those of a stack. So images with a profile are
    # resolved first, and images that share a layer with them can take the same versions.
    for name, image in sorted(to_lock.items(), key=lambda item: item[1].name.profile is None):
        # An index that did not answer is not asked again.
        if image.index in unreachable:
            first = unreachable[image.index][0]
            unreachable[image.index].append(replace(first, where=name))
            continue
        preferred = {} if upgrade else _load_present_versions(folder / name)
        # Versions of a layer that another lock has in common with it count more than its own.
        preferred |= _find_shared_versions(image, [*made.values(), *present_locks])
        tell(f"resolving {name}")
        try:
            made[name] = resolve(image, run, preferred=preferred)
            for package, index in made[name].inputs.private.items():
                tell(f"{name}: {package} is from the private index {index} alone")
        except LoginRefused:
            # Every other image would have the same problem.
            raise
        except IndexUnreachable as error:
            unreachable[str(image.index)] = [*error.problems]
        except UserError as error:
            problems += error.problems

    if problems:
        raise UserError([*problems, *chain.from_iterable(unreachable.values())])
    return Update(_files_of(made), unreachable)


def _files_of(locks: Mapping[str, Lock]) -> dict[str, bytes]:
    """Return the files of locks, by path below the folder of locks. `locks`: by name."""
    files = {}
    for name, lock in locks.items():
        for path, content in lock_file.serialize(lock).items():
            files[f"{name}/{path}"] = content
    return files


def _load_present_locks(images: Iterable[Image], folder: Path) -> list[Lock]:
    """Return the locks that are neither missing nor stale."""
    locks = []
    for image in images:
        if lock_file.is_present(image, folder):
            locks.append(lock_file.load(folder / image.lock_name))
    return locks


def _find_sharing_images(
    others: Iterable[Image], images: Iterable[Image], folder: Path
) -> Iterator[Image]:
    """Yield the other images that have a lock and share a layer with one of `images`.

    `folder` is the folder of locks.
    """
    inputs_of_images = [lock_inputs(image) for image in images]
    for other in others:
        if not (folder / other.lock_name / lock_file.RECORD).is_file():
            continue
        inputs = lock_inputs(other)
        if any(inputs.find_shared_layers(inputs_of_image) for inputs_of_image in inputs_of_images):
            yield other


def _load_present_versions(place: Path) -> dict[str, str]:
    """Return the versions of the lock in a folder, even a stale one; none if it can't be read."""
    with suppress(UserError):
        lock = lock_file.load(place)
        return lock.versions(lock.inputs.layers)
    return {}


def _find_shared_versions(image: Image, locks: Iterable[Lock]) -> dict[str, str]:
    """Return the versions in the layers that an image shares with one of these locks, by package.

    The first lock that shares a layer is taken. Empty if none does.
    """
    inputs = lock_inputs(image)
    for lock in locks:
        versions = lock.versions(lock.inputs.find_shared_layers(inputs))
        if versions:
            return versions
    return {}


def resolve(
    image: Image, run: Runner = uv.run, *, preferred: Mapping[str, str] | None = None
) -> Lock:
    """Resolve all packages of an image at once, then split them into its layers.

    `preferred` versions are taken where they fit.

    Raises UserError: no versions fit, a package is published as source only or is a local file,
    torch is not the image's CUDA build, or an index can't be reached or gives no hashes.
    """
    where = str(image.name)
    inputs = lock_inputs(image)
    requirements: list[str] = []
    for layer in inputs.layers:
        requirements += inputs.requirements(layer)
    # Resolve all layers at once, because a package has the same version in all of them.
    chosen = uv.resolve_versions(
        requirements, inputs, preferred=preferred or {}, run=run, where=where
    )
    # Packages of private indexes must be pinned. uv took these from the default index.
    unpinned = [name for name in inputs.reserved if name in chosen]
    if unpinned:
        raise UserError([_unpinned(name, where) for name in unpinned])

    # Split the packages into layers. This also gets the hashes of their files.
    layers = _split_into_layers(inputs, chosen, run, where)
    packages = list(chain.from_iterable(layers.values()))
    problems = list(_find_wrong_builds(image, packages))
    if problems:
        raise UserError(problems)

    # If no package is built from source, the lock need not name build tools. Locks of profiles name
    # them all the same, because their images were recorded with such locks (locks/layers.json).
    has_sources = any(package.name in inputs.from_source for package in packages)
    if not has_sources and image.name.profile is None:
        inputs = inputs.without_sources()

    layers |= _resolve_layers_alone(inputs, run, where)
    files = {}
    for layer, packages_of_layer in layers.items():
        content = lock_file.print_requirements(packages_of_layer, inputs.platform)
        files[f"{layer}.txt"] = content
    return Lock(inputs=inputs, files=files, layers=layers)


def _unpinned(package: str, where: str) -> Problem:
    """Return the problem that a package of a private index is required, but not pinned.

    uv would take it from the default index, where anybody may have published another package under
    that name. `where` is the image's name.
    """
    cause = (
        f"a package of the image requires {package}, which `indexes` in matrix.yaml takes from a "
        "private index alone, and which the image does not pin"
    )
    then = (
        f"pin {package} in matrix.yaml (name it in a layer, and its version under `common` or in "
        f"a stack), then `{command('lock', where)}`"
    )
    return Problem(where=where, cause=cause, then=then)


def _resolve_private_packages(
    inputs: LockInputs, chosen: Mapping[str, str], run: Runner, where: str
) -> dict[str, Package]:
    """Return the packages that only private indexes have (name -> package with its hashes).

    A private index is a company's own. uv resolves these packages apart from all others and without
    what they require, so that it asks their own index only. `chosen` has the version of every
    package of the image. `run` calls uv. Raises UserError, which begins with `where`, if uv fails.
    """
    if not inputs.private:
        return {}
    exact = [f"{name}=={chosen[name]}" for name in inputs.private]
    # No overrides: uv would look on the default index for a package that an override names.
    target = replace(inputs, overrides=())
    packages = _resolve_without_dependencies(exact, target, (inputs.platform,), run, where)
    return {package.name: package for package in packages}


def _resolve_without_dependencies(
    exact: Sequence[str], inputs: LockInputs, platforms: Iterable[str], run: Runner, where: str
) -> tuple[Package, ...]:
    """Return the packages of exact requirements (`uv==0.13.8`), but not what these require.

    Each has the hashes of its wheels for all of these platforms. `inputs` has the Python and the
    indexes. `run` calls uv, and errors begin with `where`.
    """
    packages: dict[str, Package] = {}
    for platform in platforms:
        target = replace(inputs, platform=platform)
        resolved = uv.resolve_packages(
            exact, target, chosen={}, run=run, where=where, dependencies=False
        )
        for package in resolved:
            # The same package may have been resolved for an earlier platform: keep those hashes.
            hashes = set(package.hashes)
            if package.name in packages:
                hashes.update(packages[package.name].hashes)
            packages[package.name] = replace(package, hashes=tuple(sorted(hashes)))
    return tuple(packages.values())


def _split_into_layers(
    inputs: LockInputs, chosen: Mapping[str, str], run: Runner, where: str
) -> dict[str, tuple[Package, ...]]:
    """Decide which layer of the image installs which packages: return layer -> packages.

    matrix.yaml puts the packages that it pins into layers. Every other package goes into the lowest
    layer that needs it. To find that, uv resolves each layer together with those below it.

    chosen: the version of each package in the whole image.
    run: calls uv.
    where: what messages of errors begin with.
    """
    # Package -> the layer that installs it. For a pin, the matrix decides which.
    layer_of = {}
    for layer, pins in inputs.layers.items():
        for pin in pins:
            layer_of[distribution(pin)] = layer

    private_packages = _resolve_private_packages(inputs, chosen, run, where)
    needed: dict[str, Package] = {}
    requirements: list[str] = []
    for layer in inputs.layers:
        # The requirements of this layer and of all layers below it.
        requirements += inputs.requirements(layer)
        if not requirements:
            continue
        # Exclude private packages that only a layer above pins: uv would ask the default index for
        # them.
        pinned = {distribution(requirement) for requirement in requirements}
        pinned_above = [name for name in inputs.private if name not in pinned]
        target = replace(inputs, excluded=(*inputs.excluded, *pinned_above))
        packages = uv.resolve_packages(requirements, target, chosen=chosen, run=run, where=where)
        for package in packages:
            if package.name not in needed:
                needed[package.name] = private_packages.get(package.name, package)
                # This does not move pins, which have their layer already.
                layer_of.setdefault(package.name, layer)

    layers: dict[str, list[Package]] = {layer: [] for layer in inputs.layers}
    for name in sorted(needed):
        layers[layer_of[name]].append(needed[name])
    return {layer: tuple(packages) for layer, packages in layers.items()}


def _resolve_layers_alone(
    inputs: LockInputs, run: Runner, where: str
) -> dict[str, tuple[Package, ...]]:
    """Return the packages of CUDA's toolkit, of the installer (`tools`) and of the build tools.

    They are locked by themselves, without what they require. The result is layer -> packages.
    """
    layers = {}
    for name, exact in inputs.alone.items():
        platforms: tuple[str, ...] = (inputs.platform,)
        # The installer is locked for the platform of every machine that may build the image.
        if name == "tools" and inputs.builders:
            platforms = inputs.builders
        layers[name] = _resolve_without_dependencies(exact, inputs, platforms, run, where)
    return layers


def _find_wrong_builds(image: Image, packages: Sequence[Package]) -> Iterator[Problem]:
    """Yield a problem for each package that is built for something else than the image's CUDA.

    The local version of a package (`+cpu`, `+cu130`) names its build. torch from the default index
    has none: there, the version of the CUDA runtime that it requires shows its build.
    """
    versions = {package.name: package.version for package in packages}
    yield from _find_wrong_local_versions(image, packages)
    yield from _find_wrong_runtime(image, versions)


def _find_wrong_local_versions(image: Image, packages: Iterable[Package]) -> Iterator[Problem]:
    """Yield a problem for each package whose local version is not that of the image's CUDA."""
    # Wheels on the default index have no local version. Those on the index of the image's torch may
    # have that of its CUDA.
    allowed = {None, f"cu{image.wheel_cuda.digits}"} if image.index else {None}
    for package in packages:
        local = Version(package.version).local
        if local not in allowed:
            kind = "a CPU build" if local == "cpu" else f"a build of {local}"
            release = f"{package.name} {package.version}"
            cause = f"{release} is {kind}; the image wants CUDA {image.wheel_cuda}"
            if package.wheel:
                # Pins have no local version, so a private index must publish it without one.
                then = (
                    f"publish it without +{local} on its private index, then "
                    f"`{command('lock', image.lock_name)}`"
                )
            else:
                then = (
                    "this wheel is not PyPI's: `unset UV_DEFAULT_INDEX UV_INDEX_URL "
                    "PIP_INDEX_URL`, so that uv takes PyPI, or set UV_DEFAULT_INDEX to a mirror "
                    "that adds no builds of its own, then "
                    f"`{command('lock', image.lock_name)}`"
                )
            yield Problem(where=str(image.name), cause=cause, then=then)


def _find_wrong_runtime(image: Image, versions: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem if the CUDA runtime among the packages is not that of the image's CUDA.

    `versions`: package -> version, of all packages of the image.
    """
    # From CUDA 13.0 on, the name of the runtime's package has no CUDA major.
    runtime = "nvidia-cuda-runtime"
    if image.wheel_cuda < Minor(13, 0):
        runtime = f"nvidia-cuda-runtime-cu{image.wheel_cuda.major}"
    runtime_version = versions.get(runtime)
    if runtime_version is not None and Minor.parse(runtime_version) == image.wheel_cuda:
        return

    # A runtime of another CUDA may have the name with or without a major.
    runtimes = []
    for name, other_version in versions.items():
        if name.startswith("nvidia-cuda-runtime"):
            runtimes.append(f"{name} {other_version}")
    if runtimes:
        brings = f"brings {', '.join(runtimes)}"
    else:
        brings = "brings no CUDA runtime: it is a CPU build"
    torch = versions.get("torch", "")
    what_is_wrong = by_installation(
        checkout=f"correct `torch.{torch}.variants` in images/data/facts.yaml, which has a wheel "
        f"for CUDA {image.wheel_cuda}",
        installed=f"truetag is wrong about the CUDA of torch {torch}: please report it",
    )
    yield Problem(
        where=str(image.name),
        cause=f"torch {torch} {brings}; the image wants CUDA {image.wheel_cuda}",
        then=(
            "if UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL is set (`env` shows it), the wheel "
            "came from that index: unset these variables, so that uv takes PyPI, or name a mirror "
            f"that serves PyPI's own wheels, then `{command('lock', image.lock_name)}`; if none of "
            f"them is set, the wheel came from PyPI: {what_is_wrong}"
        ),
    )
