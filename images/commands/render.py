"""The verb `render`: write build contexts to disk, to build elsewhere than on this machine."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from images.building import contexts, run_files
from images.building.contexts import BuildOptions
from images.commands import common
from images.commands.options import (
    BaseImage,
    MatrixFile,
    OutFolder,
    SomeSelectors,
    WheelFolder,
    require_writable,
)
from images.context import base_images
from images.context.hosting import host_settings
from images.errors import command
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning.image import Image
from images.wheels import prebuilt


def render(
    selectors: SomeSelectors,
    base: BaseImage = "auto",
    wheelhouse: WheelFolder = None,
    out: OutFolder = None,
    matrix: MatrixFile = None,
) -> None:
    """Write build contexts, for `docker build` or `docker buildx build`.

    Fetches official wheels. Builds, validates and names nothing: `validate NAME --tag` does the
    latter two once an image is there.
    """
    sources = common.sources(matrix)
    folder = require_writable(out or sources.workspace.out)
    options = BuildOptions(
        sources=sources,
        host=host_settings(),
        out=folder,
        base=base,
        wheelhouse=wheelhouse,
        compiled=prebuilt.wheel_finder(sources.matrix),
    )
    # `validate --tag` needs the same options, to find the images' contexts.
    places: list[str] = []
    if matrix:
        places += ["--matrix", str(matrix)]
    if out:
        places += ["--out", str(out)]

    pinned = base_images.pinned(sources.workspace.root)
    images = common.select_accepted(selectors, sources)
    for image, lock in lock_file.read_all(images, sources.workspace.locks):
        _write_context(image, lock, options, pinned)
    # Before the commands, because these name options of `docker build`.
    if base != base_images.AUTO:
        pythons = " and ".join(sorted({str(image.base.python) for image in images}))
        common.say(
            f"{base} was not looked at: the context fits a base with Python {pythons}, or one with "
            "an apt-get that installs it; "
            f"`{command('build', *selectors, '--base', base)}` looks, and refuses any other"
        )
    for warning in _describe_unused_locks(images, options, pinned):
        common.say(warning)
    for image in images:
        _tell_how_to_build(image, folder, places)


def _tell_how_to_build(image: Image, folder: Path, places: Sequence[str]) -> None:
    """Print the commands that build an image from its context in `folder`, and validate it.

    `places`: options that `validate` needs to find the context.
    """
    context = folder / str(image.name) / "context"
    build = f"DOCKER_BUILDKIT=1 docker build -t {image.local_name}-candidate {context}"
    naming = command("validate", str(image.name), "--tag", *places)
    common.tell(f"next: `{build}` builds a candidate")
    common.tell(f"then: `{naming}` judges it, and names it {image.local_name}")


def _describe_unused_locks(
    images: Sequence[Image], options: BuildOptions, pinned: Mapping[str, str]
) -> list[str]:
    """Return a warning for each lock of Debian's packages that the contexts of `images` leave out.

    A context on disk names its base in FROM, and only `build` can make one of locked packages. With
    --base, the user has named a base, to which no lock belongs. `pinned`: reference of a base ->
    its recorded digest.
    """
    if options.base != base_images.AUTO:
        return []
    warnings = {}
    for image in images:
        base = image.base
        if base.custom or not base_images.has_lock(base, options.sources.workspace.root):
            continue
        how = "digest" if base.reference in pinned else "tag"
        reason = f"a context that `render` writes takes {base.reference} by its {how}"
        building = command("build", str(image.name))
        # Images share locks: each lock is named once.
        warnings[base.reference, base.platform] = (
            f"{base_images.describe_unused_lock(base, reason)}; next: `{building}` on a machine "
            "with mmdebstrap uses the lock; or give `docker build` the options `--pull --no-cache`"
        )
    return [*warnings.values()]


def _write_context(
    image: Image, lock: Lock, options: BuildOptions, pinned: Mapping[str, str]
) -> None:
    """Write the build context of an image (the files for `docker build`) to OUT/NAME/context.

    The record of what the image is built from lies beside it. OUT is `options.out`. `pinned` has
    reference -> digest of the base images. Optional packages that the image will lack are reported
    on stderr. Raises UserError if a wheel is missing that is required.
    """
    workspace = options.sources.workspace
    base_context = contexts.base_context(image.base, options.base, pinned)
    prepared = contexts.prepare(image, lock, base_context, options)
    # The wheels that are not in the lock: compiled ones, for example. Some may be missing.
    wheels = prepared.wheels
    for package, reason in wheels.missing.items():
        step = f"{wheels.details[package]}; {prebuilt.UNLESS_USED}"
        common.say(f"{image.name} lacks {reason}: {step}")
    folder = options.out / str(image.name)
    run_files.write_context(prepared.files, folder / "context")
    source = run_files.build_source(workspace.root, lock)
    run_files.write_inputs(folder, image, base_context, wheels, source)
