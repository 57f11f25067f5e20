"""From an image to its lock, by uv: all packages are resolved at once, then split into layers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from packaging.version import Version

from images.config.names import Minor
from images.errors import Problem, UserError
from images.locking import lock_file, uv
from images.locking.inputs import LockInputs, Package, distribution, lock_inputs
from images.locking.lock_file import Lock
from images.locking.uv import IndexUnreachable, Runner
from images.planning.image import Image


def update(
    images: Sequence[Image],
    others: Sequence[Image] = (),
    *,
    folder: Path,
    upgrade: bool = False,
    run: Runner = uv.run,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[dict[str, bytes], dict[str, list[Problem]]]:
    """Resolve the locks of `images`; `folder` has the present ones.

    Returns path below the folder of locks -> content, and index that does not answer -> a problem for each image that
    was not locked.

    Versions of the present lock are kept where they still fit, so that moving one pin does not move the world;
    `upgrade` takes the newest that fit instead, and then renews the locks of those `others` (the rest of the plan)
    that share a layer, since they stay equal in it. `tell` gets a line an image. An index that does not answer is
    asked once. Raises UserError with the problems of all images at once.
    """
    wanted = {image.lock_name: image for image in images}
    mine = [lock_inputs(image) for image in images]
    for other in others if upgrade else ():
        is_locked = (folder / other.lock_name / lock_file.RECORD).is_file()
        if is_locked and any(lock_inputs(other).shares(one) for one in mine):
            wanted[other.lock_name] = other
    present = [one for one in others if not upgrade and lock_file.is_present(one, folder)]
    locks = [*(lock_file.load(folder / one.lock_name) for one in present)]
    made: dict[str, Lock] = {}
    problems: list[Problem] = []
    unreachable: dict[str, list[Problem]] = {}
    # A profile's packages are choosier than a stack's: what they settle on, images that share a layer can follow.
    for name, image in sorted(wanted.items(), key=lambda item: item[1].name.profile is None):
        if image.index in unreachable:
            unreachable[image.index].append(replace(unreachable[image.index][0], where=name))
            continue
        own: dict[str, str] = {}
        if not upgrade:
            with suppress(UserError):  # no lock lies there, or a damaged one
                lock = lock_file.load(folder / name)
                own = lock.versions(lock.inputs.layers)
        tell(f"resolving {name}")
        try:
            # Above its own, the versions of layers that another lock has in common with it.
            shares = (
                one.versions(one.inputs.shares(lock_inputs(image)))
                for one in (*made.values(), *locks)
            )
            made[name] = resolve(image, run, preferred=own | next(filter(None, shares), {}))
        except IndexUnreachable as error:
            unreachable[str(image.index)] = [*error.problems]
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(
            [*problems, *(problem for found in unreachable.values() for problem in found)]
        )
    files = {
        f"{name}/{path}": text
        for name, lock in made.items()
        for path, text in lock_file.written(lock).items()
    }
    return files, unreachable


def resolve(
    image: Image, run: Runner = uv.run, *, preferred: Mapping[str, str] | None = None
) -> Lock:
    """Resolve the whole image at once, then split it into layers.

    Raises UserError: no versions fit, a package is source only or a local file, the torch is not the image's CUDA
    build, an index that can't be reached or gives no hashes.
    """
    where, wanted = str(image.name), lock_inputs(image)
    pins = [pin for layer in wanted.layers for pin in wanted.asked(layer)]
    chosen = uv.versions(pins, wanted, preferred=preferred or {}, run=run, where=where)
    layers = _split(wanted, chosen, run, where)
    everything = [package for layer in layers.values() for package in layer]
    if problems := [*_wrong_builds(image, everything)]:
        raise UserError(problems)
    for name, exact in wanted.alone.items():
        # The installer has the wheels of all machines that may run it.
        platforms = wanted.builders if name == "tools" and wanted.builders else (wanted.platform,)
        alone: dict[str, Package] = {}
        for target in (replace(wanted, platform=platform) for platform in platforms):
            for one in uv.packages(
                exact, target, chosen={}, run=run, where=where, dependencies=False
            ):
                others = alone[one.name].hashes if one.name in alone else ()
                alone[one.name] = replace(one, hashes=tuple(sorted({*others, *one.hashes})))
        layers[name] = tuple(alone.values())
    files = {
        f"{layer}.txt": lock_file.print_requirements(found, wanted.platform)
        for layer, found in layers.items()
    }
    return Lock(inputs=wanted, files=files, layers=layers)


def _split(
    wanted: LockInputs, chosen: Mapping[str, str], run: Runner, where: str
) -> dict[str, tuple[Package, ...]]:
    """Layer -> packages: a pin is in its own layer, all else in the lowest layer that needs it.

    What a layer needs is asked of uv, for that layer and those below at the versions chosen for the whole: markers
    and extras are then right, and nothing above can be seen in the answer but the versions.
    """
    home = {distribution(pin): layer for layer, pins in wanted.layers.items() for pin in pins}
    needed: dict[str, Package] = {}
    for layer, pins in zip(
        wanted.layers, accumulate(map(wanted.asked, wanted.layers)), strict=True
    ):
        for package in (
            uv.packages(pins, wanted, chosen=chosen, run=run, where=where) if pins else ()
        ):
            needed.setdefault(package.name, package)
            home.setdefault(package.name, layer)
    ordered = sorted(needed.values(), key=lambda package: package.name)
    return {
        layer: tuple(package for package in ordered if home[package.name] == layer)
        for layer in wanted.layers
    }


def _wrong_builds(image: Image, packages: Iterable[Package]) -> Iterator[Problem]:
    """Local versions (+cpu, +cu130) that this image did not ask for: PyPI has none, PyTorch's index one a variant.

    And a torch whose closure lacks the CUDA runtime of the image's wheel: a CPU torch, or one of another CUDA.
    """
    allowed = {None, f"cu{image.wheel_cuda.digits}"} if image.index else {None}
    for package in packages:
        local = Version(package.version).local
        if local not in allowed:
            kind = "a CPU build" if local == "cpu" else f"a build of {local}"
            cause = f"{package.name} {package.version} is {kind}; the image wants CUDA {image.wheel_cuda}"
            then = "resolve with the plain index: no find-links, no extra index, no mirror that adds builds of its own"
            yield Problem(where=str(image.name), cause=cause, then=then)
    distribution = "nvidia-cuda-runtime" + (
        f"-cu{image.wheel_cuda.major}" if image.wheel_cuda < Minor(13, 0) else ""
    )
    by_name = {package.name: package.version for package in packages}
    runtimes = [
        f"{name} {version}"
        for name, version in by_name.items()
        if name.startswith("nvidia-cuda-runtime")
    ]
    version = by_name.get(distribution)
    if version is None or Minor.parse(version) != image.wheel_cuda:
        has = (
            f"brings {', '.join(runtimes)}"
            if runtimes
            else "brings no CUDA runtime: it is a CPU build"
        )
        cause = f"torch {by_name.get('torch', '')} {has}; the image wants CUDA {image.wheel_cuda}"
        then = "does the index have the variant that images/data/facts.yaml says?"
        yield Problem(where=str(image.name), cause=cause, then=then)
