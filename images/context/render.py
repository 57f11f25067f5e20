"""Renders an image and its lock into a build context: a dict from path to bytes. Pure.

The same dict is written to disk (`render`) or packed for the engine. It depends on no clock, engine
or environment.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from images.config.names import Minor
from images.config.paths import TEMPLATES
from images.config.platforms import Platform
from images.context import pruner
from images.context.labels import BaseContext, labels
from images.context.templates import EPOCH, environment, step_macros
from images.host.hashing import sha256
from images.planning import user_overlay
from images.planning.candidate import PROFILE_LAYER
from images.planning.image import Image, Pin, stem_of
from images.planning.user_overlay import packages

LIBRARIES = "cuda"
"""The layer of NVIDIA's libraries: the lower half of the matrix's bottom layer."""

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_OFFLINE = b"""\
unset UV_INDEX UV_INDEX_URL UV_EXTRA_INDEX_URL
export UV_OFFLINE=1 UV_DEFAULT_INDEX=file:///run/no-index UV_FIND_LINKS=/run/wheels
"""
"""UV_OFFLINE is not enough: uv would take what its cache knows of an index, and lack the files."""
_CONSTRAINTS_HEAD = """\
# What pip and uv may not move in {name} (PIP_CONSTRAINT, UV_CONSTRAINT): \
torch, CUDA's libraries and kernels.
# A package that wants others is refused: \
take a release of it that fits this torch, or an image with its torch.
"""

Context = dict[str, bytes | Path]
"""Path in the context -> its bytes, or the file on this machine that holds them (large wheels)."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A Python layer of the Dockerfile (templates/stages/layer.j2)."""

    name: str
    below: str
    """The stage that it stands on."""
    holds: tuple[str, ...]
    """What it installs, for a comment."""
    lock: bool
    """Whether it installs packages of a lock."""
    index: str = ""
    """Arguments of the installer that name a further index."""
    wheels: tuple[str, ...] = ()
    """Files of wheels that no index has, which it installs."""
    toolkit_above: bool = False
    """Whether the toolkit's stage stands on it."""
    from_source: bool = False
    """Whether some of its packages are built while they are installed."""
    pruned: bool = True
    """Whether code for other GPUs is taken out, in an image for one architecture."""
    wheels_kept: bool = True
    """Whether the engine keeps its wheels for other builds.

    Not those of the largest layers, which images share as they are."""


def render(
    image: Image,
    locks: Mapping[str, bytes],
    base: BaseContext,
    *,
    host: Mapping[str, bytes] | None = None,
    wheels: Mapping[str, bytes | Path] | None = None,
    missing: Mapping[str, str] | None = None,
    offline: bool = False,
    suite: Mapping[str, bytes] | None = None,
    recipe: str = "",
) -> Context:
    """Return the build context of an image: path -> content, of the Dockerfile and what it copies.

    locks: name -> requirements file with hashes: `torch.txt` and the like, one for each layer, and
        `tools.txt`.
    base: the base image.
    host: files of this machine (CA bundle and index settings), which steps see and no layer keeps.
    wheels: file name -> file, of wheels that no index has.
    missing: optional package -> why this image lacks it.
    offline: whether `wheels` has everything that is installed, so that no step reaches an index.
    suite: files of the commands `validate` and `doctor` in the image.
    recipe: the digest of everything that the image is made of, for a label.
    """
    wheels, missing, suite = wheels or {}, missing or {}, suite or {}

    # The files that steps of the Dockerfile copy or mount. Packages that are installed from a file
    # in wheels/ are taken out of the locks.
    private = [pin.name for pin in image.pins if pin.index]
    files = _lock_files(image, locks, {*image.choose_compiled_wheels(wheels), *private})
    if base.packages:
        files["locks/debian.txt"] = base.packages
    files |= _step_files(image)
    files |= host or {"host/env": b""}
    if offline:
        files["host/env"] = offline_settings(files["host/env"])
    for name, content in suite.items():
        files[f"suite/{name}"] = content
    files |= overlay_files(image, base, locks, missing)
    files["wheels/README"] = (
        b"Wheels that no index has: official prebuilt ones, or from --wheelhouse.\n"
    )
    for name, wheel in wheels.items():
        files[f"wheels/{name}"] = wheel

    index = "" if offline else index_arguments(image)
    stages = tuple(_stages(image, files, sorted(wheels), missing, index))
    files["Dockerfile"] = _render_dockerfile(
        image,
        base,
        stages,
        variables=_final_environment(image, base, locks),
        labels=labels(image, base, missing, recipe),
        wheels=sorted(wheels),
        offline=offline,
        has_suite=bool(suite),
    )
    return dict(sorted(files.items()))


def _render_dockerfile(
    image: Image,
    base: BaseContext,
    stages: Sequence[Stage],
    *,
    variables: Mapping[str, str],
    labels: Mapping[str, str],
    wheels: Sequence[str],
    offline: bool,
    has_suite: bool,
) -> bytes:
    """Return the Dockerfile of an image, from templates/Dockerfile.j2.

    stages: the stages that install Python packages, the lowest first.
    variables: environment variables of the final stage, and `labels` its labels.
    wheels: the names of the files in wheels/.
    offline: whether steps reach no network.
    has_suite: whether the image gets the commands `validate` and `doctor`.
    """
    # Variables that only installers read do not count for the recipe. They get an instruction of
    # their own, so that they can be told apart.
    user_variables, installer_variables = {}, {}
    for name, value in variables.items():
        if name in user_overlay.INSTALLERS_ONLY:
            installer_variables[name] = value
        else:
            user_variables[name] = value

    # A wheelhouse may bring the wheel of the installer, uv.
    installers = [name for name in wheels if name.startswith("uv-")]
    template = environment().get_template("Dockerfile.j2")
    dockerfile = template.render(
        image=image,
        torch=image.pin("torch"),
        base=base,
        user=user_overlay.USER,
        layers=stages,
        environment=user_variables,
        installer_environment=installer_variables,
        additions=user_overlay.python(image).rpartition("/")[0],
        labels=labels,
        installer=installers[0] if installers else "",
        epoch=EPOCH,
        native_installer=image.name.platform is not Platform.AMD64,
        **step_macros(offline=offline, pruning=image.pruning is not None),
        suite=has_suite,
    )
    return dockerfile.encode()


def _lock_files(image: Image, locks: Mapping[str, bytes], provided: Container[str]) -> Context:
    """Return the locks below locks/, without the packages that a wheel provides.

    A lock is a requirements file with hashes. The lock of the bottom layer is split into NVIDIA's
    libraries and all else, if it has both. `locks` is `torch.txt` and the like -> content,
    `provided` are the names of packages. The result is path in the build context -> content.
    """
    files: Context = {}
    for name, content in locks.items():
        # `toolkit.txt` and `tools.txt` are not locks of a layer, and stay whole.
        if name.removesuffix(".txt") in image.layers:
            content = without_packages(content, provided)
        files[f"locks/{name}"] = content
    return files | split_bottom_lock(files, image.layers[0])


def _step_files(image: Image) -> Context:
    """Return the programs that the build's steps of this image run."""
    files = scripts()
    if image.name.platform is not Platform.AMD64:
        files["scripts/installer.sh"] = (TEMPLATES / "platforms" / "installer.sh").read_bytes()
    if image.pruning:
        files |= pruner.files(image.pruning)
    if image.entrypoint:
        entrypoint = TEMPLATES / "entrypoints" / image.entrypoint
        files[f"entrypoints/{image.entrypoint}"] = entrypoint.read_bytes()
    return files


def _final_environment(
    image: Image, base: BaseContext, locks: Mapping[str, bytes]
) -> dict[str, str]:
    """Return the environment variables of the Dockerfile's final stage, which the users see.

    They differ between images. Stages that images share must not have them, because their steps
    would be built again for other variables.
    """
    # PATH begins with the folder of users' packages, whose name has this digest of the locks.
    key = overlay_key(image, locks)
    return {
        **image.environment,
        **user_overlay.variables(image),
        "PATH": ":".join(search_path(image, base, key)),
        # HOME, USER and LANG.
        **user_overlay.IDENTITY,
    }


def scripts() -> Context:
    """Return the programs that the steps of every build run, below scripts/."""
    files: Context = {}
    for path in (TEMPLATES / "scripts").iterdir():
        if path.is_file():
            files[f"scripts/{path.name}"] = path.read_bytes()
    return files


def offline_settings(settings: bytes | Path) -> bytes:
    """Return host/env for a build whose steps reach no network and find wheels in /run/wheels."""
    return content_of(settings) + _OFFLINE


def content_of(file: bytes | Path) -> bytes:
    """Return the bytes of a file of a context."""
    return file if isinstance(file, bytes) else file.read_bytes()


def split_bottom_lock(files: Context, bottom: str) -> Context:
    """Split the bottom layer's lock in two: NVIDIA's libraries, and all else.

    Engines fetch and unpack layers side by side, so two layers of about the same size are faster
    than one. Images for single GPU architectures can also share the libraries' layer.

    files: the build context, with the lock as `locks/BOTTOM.txt`: a requirements file.
    bottom: the layer's name.

    The result is path -> content; empty if one of the two locks would be empty.
    """
    lock = content_of(files[f"locks/{bottom}.txt"])
    names = frozenset(locked_versions(lock))
    libraries = frozenset(name for name in names if name.startswith("nvidia-"))
    if not libraries or libraries == names:
        return {}
    return {
        f"locks/{bottom}.txt": without_packages(lock, libraries),
        f"locks/{LIBRARIES}.txt": without_packages(lock, names - libraries),
    }


def libraries_stage(index: str, *, pruned: bool = False) -> Stage:
    """Return the stage of the Dockerfile that installs NVIDIA's libraries, by a lock of their own.

    `split_bottom_lock` made this lock. `index` are the installer's arguments that name the index.
    `pruned`: the stage also takes out code for GPUs that the image is not for.
    """
    return Stage(
        name=LIBRARIES,
        below="system",
        holds=("NVIDIA's libraries",),
        lock=True,
        index=index,
        pruned=pruned,
        wheels_kept=False,
    )


def _stages(
    image: Image, files: Context, wheels: Sequence[str], missing: Collection[str], index: str
) -> Iterator[Stage]:
    """Yield the stages of the Dockerfile that install the image's Python layers, bottom first.

    files: those of the build context so far.
    wheels: the names of the wheels' files in it.
    missing: the packages that the image goes without.
    index: the installer's arguments that name the index.
    """
    # Each stage stands on the one before it, the first one on the stage with Debian's packages.
    below = "system"
    if f"locks/{LIBRARIES}.txt" in files:
        yield libraries_stage(index, pruned=bool(image.pruning and image.pruning.nvidia))
        below = LIBRARIES

    # The toolkit is installed at the end of the stage before the last of the matrix's layers. So it
    # lies below what a profile adds, and images with and without a profile share it.
    layers_of_matrix = [layer for layer in image.layers if layer != PROFILE_LAYER]
    layer_below_toolkit = layers_of_matrix[-2]

    replaced_by_wheels = image.choose_compiled_wheels(wheels)
    for name in image.layers:
        # The packages of the layer that the matrix pins.
        pins = [pin for pin in image.pins if pin.layer == name]
        # The lock of a layer may be empty: all its packages come as wheels.
        locked = locked_versions(files.get(f"locks/{name}.txt", b""))
        is_built = not locked.keys().isdisjoint(image.from_source)
        yield Stage(
            name=name,
            below=below,
            holds=tuple(f"{pin.name} {pin.version}" for pin in pins if pin.name not in missing),
            lock=bool(locked),
            index=index,
            wheels=_wheels_of(pins, wheels, replaced_by_wheels),
            toolkit_above=name == layer_below_toolkit,
            # All locks of profiles have build tools (images/locking/resolve.py).
            from_source=is_built or (name == PROFILE_LAYER and bool(image.from_source)),
            # The wheels of the bottom layer are the largest ones.
            wheels_kept=name != image.layers[0],
        )
        below = name


def _wheels_of(
    pins: Sequence[Pin], wheels: Sequence[str], replaced_by_wheels: Container[str]
) -> tuple[str, ...]:
    """Return the files of the wheels that a step installs in place of, or besides, its lock.

    `pins` are the packages of the step, `wheels` the wheel files of the whole context, and
    `replaced_by_wheels` the packages whose wheel takes the place of what the lock has.
    """
    # In an offline build, the context also has the wheels of the lock. They are not returned,
    # because the lock installs them.
    stems = set()
    for pin in pins:
        if not pin.locked or pin.index or pin.name in replaced_by_wheels:
            stems.add(pin.wheel_stem)
    return tuple(file for file in wheels if stem_of(file) in stems)


def index_arguments(image: Image) -> str:
    """Return the installer's arguments for the index of the image's torch; empty: the default."""
    if not image.index:
        return ""
    return f" --index {image.index} --index-strategy unsafe-best-match"


def search_path(image: Image, base: BaseContext, key: str) -> tuple[str, ...]:
    """Return the folders of PATH, the first that is searched first. `key`: `overlay_key`.

    Users' packages come first, so that `python` and the image's own commands run in the environment
    that has them.
    """
    additions = f"{user_overlay.environment(image, key)}/bin"
    toolkit = f"{image.toolkit_home}/bin"
    return (additions, f"{base.environment}/bin", toolkit, *_SYSTEM_PATH)


def locked_versions(lock: bytes | Path) -> dict[str, str]:
    """Return the version of each package of a requirements file."""
    versions = {}
    for line in content_of(lock).decode().splitlines():
        # Lines with hashes are indented.
        if line and not line.startswith((" ", "#")):
            requirement = line.split()[0].rstrip("\\")
            name, _, version = requirement.partition("==")
            versions[name] = version
    return versions


def without_packages(lock: bytes, names: Container[str]) -> bytes:
    """Return a requirements file without these packages, their hashes, and comments below them."""
    # Hashes and comments (indented lines, and lines with `#`) follow the package above them.
    lines, is_left_out = [], False
    for line in lock.decode().splitlines(keepends=True):
        if not line.startswith((" ", "#")):
            is_left_out = line.split("==")[0].strip() in names
        if not is_left_out:
            lines.append(line)
    return "".join(lines).encode()


def overlay_files(
    image: Image, base: BaseContext, locks: Mapping[str, bytes], missing: Collection[str]
) -> dict[str, bytes]:
    """Return the files of the user overlay, which the last stage puts into /opt/truetag.

    pip and uv are given python.sh as the interpreter to install for. It runs that of an environment
    in the user's home, which create.py makes when it is first needed. metadata.py lets pip accept
    what the matrix overrides, and UV_OVERRIDE lets uv. The other files are what these three read.

    `missing` are the packages that the image goes without.
    """
    folder = TEMPLATES / "additions"

    # python.sh reads these lines as variables of the shell.
    environment_of_users = user_overlay.environment(image, overlay_key(image, locks))
    settings = (
        f"home={user_overlay.HOME}\n"
        f"image_python={base.executable}\n"
        f"additions={environment_of_users}\n"
    )
    # If pip refuses a package, python.sh prints the text of its line: `NAME<TAB>TEXT`. The text
    # says what to take instead or, if no release fits this torch, why that is so.
    advice = {name: row.instead for name, row in packages().items() if row.instead}
    advice |= image.unfit
    hints = "".join(f"{name}\t{text}\n" for name, text in advice.items())
    overrides = "".join(f"{requirement}\n" for requirement in image.overrides)
    return {
        "additions/python.sh": (folder / "python.sh").read_bytes(),
        "additions/create.py": (folder / "create.py").read_bytes(),
        "additions/metadata.py": (folder / "metadata.py").read_bytes(),
        "additions/overrides.txt": overrides.encode(),
        "additions/constraints.txt": constraints(image, locks, missing),
        "additions/hints": hints.encode(),
        "additions/settings": settings.encode(),
    }


def constraints(image: Image, locks: Mapping[str, bytes], missing: Collection[str]) -> bytes:
    """Return a constraints file, which keeps pip and uv from changing the image's own packages.

    It has a line `torch==2.9.0` for each package that must stay, or that has to fit torch if a user
    adds it. `locks` is file name (`torch.txt`) -> content of the lock of a layer. `missing` are the
    packages that the image goes without.
    """
    # Package -> the only version that may be installed.
    versions = {}
    # Some packages of additions.yaml, such as torchaudio, publish a release for each torch. pip
    # would otherwise try dozens of others before it finds the one that fits.
    torch = image.pin("torch")
    if torch:
        minor = str(Minor.parse(torch.version))
        # `row.torch`: torch's minor release -> the version of the package that fits it.
        for name, row in packages().items():
            if minor in row.torch and not image.pin(name):
                versions[name] = row.torch[minor]

    # Torch and what goes with it: NVIDIA's libraries are in the same layer, the bottom one.
    locked_with_torch = locked_versions(locks.get(f"{image.layers[0]}.txt", b""))
    versions |= user_overlay.held_versions(image, locked_with_torch, missing)
    lines = "".join(f"{name}=={versions[name]}\n" for name in sorted(versions))
    return f"{_CONSTRAINTS_HEAD.format(name=image.name)}{lines}".encode()


def overlay_key(image: Image, locks: Mapping[str, bytes]) -> str:
    """Return a short digest of the image's Python locks, for the folder of users' packages.

    So packages that a user installed beside one lock are not found by an image with another.
    """
    contents = [locks.get(f"{layer}.txt", b"") for layer in image.layers]
    return sha256(b"\0".join(contents))[:12]
