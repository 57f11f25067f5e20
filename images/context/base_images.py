"""Acquires base images: by digest, by tag, made of Debian packages, or custom.

Also reads what a custom base has, and the digests that are pinned in locks/bases.yaml.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from images.config.paths import TEMPLATES
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine, EngineError, ImageInfo
from images.errors import failed, wrong
from images.host.hashing import sha256
from images.locking import debian
from images.locking.debian import DebianLock
from images.planning import custom_base, user_overlay
from images.planning.custom_base import BaseFacts
from images.planning.image import Base, Image
from validate.installation import by_installation

PINS_FILE = "locks/bases.yaml"
_PIN = by_installation(
    checkout="correct the file; `python -m tools.pin` writes it anew",
    installed="correct the file, or remove it: bases are then taken by their tags",
)
AUTO = "auto"
"""In place of a reference: the base that the matrix names, however it can be had."""
BOOTSTRAPPED = "truetag-base"
"""The repository of bases that were made on this machine."""


def acquire(
    engine: Engine,
    base: Base,
    requested: str = AUTO,
    *,
    root: Path,
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> BaseContext:
    """Make sure that the engine has a base image, and return what is known of it.

    `requested` is the reference of a custom base, or `auto`. For `auto`, a custom base of the
    matrix is taken by its pinned digest (locks/bases.yaml), else by its reference. Any other base
    is found in this order, by what the workspace in `root` has:

    1. by its pinned digest (locks/bases.yaml), and in no other way if there is one;
    2. made of locked Debian packages, if mmdebstrap is installed;
    3. by its tag, from the engine or a registry;
    4. made of locked Debian packages, for which mmdebstrap is installed first.

    `on_progress` gets a line before each step that takes long, and a warning if the workspace has a
    lock of the base's Debian packages that is not used. Raises UserError if nothing works.
    """

    def say_waiting() -> None:
        on_progress(f"waits: another build acquires {base.reference}")

    # Two builds at once need the same base: the second finds what the first has made.
    with engine.hold_lock(f"base {base.key} {base.platform}", say_waiting):
        if requested != AUTO:
            return _acquire_custom(engine, base, requested, on_progress)
        digest = pinned(root).get(base.reference)
        if base.custom:
            reference = by_digest(base, digest) if digest else base.reference
            return _acquire_custom(engine, base, reference, on_progress)
        if digest:
            base_by_digest = _acquire_by_digest(engine, base, digest, on_progress)
            if has_lock(base, root):
                on_progress(_describe_lock_beside_digest(base))
            return base_by_digest
        lock = debian.find(base, root / "locks")
        # Locked packages that can be used at once come before the tag, all others after it.
        if lock is None or not shutil.which("mmdebstrap"):
            base_by_tag = _acquire_by_tag(engine, base, on_progress, is_locked=lock is not None)
            if base_by_tag:
                return base_by_tag
        # Only a Debian suite can be made of packages.
        if base.suite is None:
            cause = (
                "no registry answers, and only bases of Debian can be made without one, "
                "from a Debian mirror"
            )
            then = "connect to a registry, or give a base you have: --base REF"
            raise failed(base.reference, cause, then)
        lock = lock or debian.require(base, root / "locks")
        return _make_of_packages(engine, base, lock, host, on_progress)


def _acquire_custom(
    engine: Engine, base: Base, reference: str, on_progress: Callable[[str], None]
) -> BaseContext:
    """Return a custom base (named by the user), which is pulled if the engine lacks it.

    It is also pulled if the engine has the image of another platform under this name. Raises
    UserError if it can't be had for the platform of `base`, or images can't be built on it.
    """
    info = engine.find(reference)
    if info is None:
        on_progress(f"pulling {reference}")
        info = engine.pull(reference, platform=base.platform)
    elif info.architecture != base.platform.architecture:
        on_progress(
            f"pulling {reference} for {base.platform}: the engine has it for {info.architecture}"
        )
        try:
            info = engine.pull(reference, platform=base.platform)
        except EngineError as error:
            cause = (
                f"the engine has it for {info.architecture}, the image is for {base.platform}, and "
                f"pulling it for that failed: {error.problems[0].cause}"
            )
            raise wrong(reference, cause, _other_platform(base)) from None

    # A registry that has the image of one platform gives that one, whatever was asked for.
    if info.architecture != base.platform.architecture:
        cause = f"is for {info.architecture}, the image is for {base.platform}"
        raise wrong(reference, cause, _other_platform(base))
    return _read_custom(engine, base, info, reference, on_progress)


def _other_platform(base: Base) -> str:
    """Return what to do about a custom base that is not to be had for the image's platform."""
    return (
        f"push a base for {base.platform} under this name, or name another one in matrix.yaml or "
        "with --base REF"
    )


def _acquire_by_digest(
    engine: Engine, base: Base, digest: str, on_progress: Callable[[str], None]
) -> BaseContext:
    """Return a base by its pinned digest, from the engine or else pulled from a registry.

    Raises UserError if neither has it: no other image will do.
    """
    reference = by_digest(base, digest)
    info = _find_or_pull(engine, base, reference, "", on_progress)
    if info is None:
        cause = (
            f"no registry answers, and this engine does not have the base with the digest {digest} "
            f"that {PINS_FILE} pins"
        )
        then = (
            "connect to a registry and build again. Without one: build on a base that this engine "
            f"has (--base REF), or delete the base's line in {PINS_FILE}, and the base is made of "
            "Debian's packages or taken by its tag"
        )
        raise failed(base.reference, cause, then)
    return BaseContext(reference=reference, origin="digest", digest=digest)


def by_digest(base: Base, digest: str) -> str:
    """Return the reference of a base by its digest: `debian@sha256:...`."""
    without_digest = base.reference.partition("@")[0]
    # A colon before the last slash is that of a port: `localhost:5000/base`.
    folder, slash, name = without_digest.rpartition("/")
    return f"{folder}{slash}{name.partition(':')[0]}@{digest}"


def other_base(image: Image, labels: Mapping[str, str]) -> str:
    """Return the base of an image if it is another one than the matrix's; else an empty text.

    An image that was built with --base has the same name as one on the matrix's base, so messages
    must name its base, too. `labels` are those of the built image.
    """
    base = BaseContext.from_labels(labels)
    if base.origin != "custom":
        return ""
    # A custom base of the matrix may have been taken by its digest.
    references = [image.base.reference]
    digest = base.reference.partition("@")[2]
    if digest:
        references.append(by_digest(image.base, digest))
    is_of_matrix = image.base.custom and base.reference in references
    return "" if is_of_matrix else base.reference


def _acquire_by_tag(
    engine: Engine, base: Base, on_progress: Callable[[str], None], *, is_locked: bool
) -> BaseContext | None:
    """Return a base by its tag; None if the engine lacks it and no registry answers.

    A tag may name other bytes tomorrow, so the progress says why the base is taken in this way.
    `is_locked`: it could be made of locked packages instead, if mmdebstrap were installed.
    """
    note = " by its tag"
    if not is_locked:
        how = by_installation(
            checkout="`python -m tools.pin`", installed=f"a line of {PINS_FILE} pins one"
        )
        note += f": no digest is pinned ({how})"
    info = _find_or_pull(engine, base, base.reference, note, on_progress)
    if info is None:
        return None
    # The engine may have the tag, so that nothing is pulled and no other line is shown.
    if is_locked:
        on_progress(_describe_lock_without_mmdebstrap(base))
    return BaseContext(reference=base.reference, origin="tag", digest=_digest_of(info))


def has_lock(base: Base, root: Path) -> bool:
    """Return whether the workspace in `root` has a lock of a base's Debian packages."""
    return base.suite is not None and (root / "locks" / debian.lock_path(base)).is_file()


def describe_unused_lock(base: Base, reason: str) -> str:
    """Return the beginning of a warning: a base's lock is not used, why, and what follows from it.

    `reason` is a clause that follows "because".
    """
    return (
        f"locks/{debian.lock_path(base)} is not used, because {reason}: the image gets the Debian "
        f"packages of {base.reference}, of Debian's mirror or of the build cache, and a security "
        "fix that was locked may not arrive"
    )


def _describe_lock_without_mmdebstrap(base: Base) -> str:
    """Return the warning that a base is taken by its tag, although its packages are locked."""
    # Docker pulls the image for this machine's platform, unless it is told another one.
    platform = f"--platform {base.platform} " if base.platform.suffix else ""
    return (
        f"{describe_unused_lock(base, 'mmdebstrap is missing')}; next: `apt-get install mmdebstrap "
        "debian-archive-keyring` (as root), then build again; or `docker pull "
        f"{platform}{base.reference}`, then build with --no-cache"
    )


def _describe_lock_beside_digest(base: Base) -> str:
    """Return the warning that a base's digest is pinned, although its packages are locked, too."""
    reason = f"{PINS_FILE} pins the digest of {base.reference}"
    return (
        f"{describe_unused_lock(base, reason)}; next: delete its line in {PINS_FILE}, and build "
        "again on a machine with mmdebstrap; or move the digest, then build with --no-cache"
    )


def _make_of_packages(
    engine: Engine,
    base: Base,
    lock: DebianLock,
    host: HostSettings,
    on_progress: Callable[[str], None],
) -> BaseContext:
    """Return a base made of locked Debian packages. One that the engine has is used again.

    mmdebstrap is installed if it is missing. Raises UserError if that, or making the base, fails.
    """
    from images.context import bootstrap  # only few builds need it

    name = name_of_made(base, bootstrap.labels(lock))
    info = engine.find(name)
    if info is None:
        lock_path = f"locks/{debian.lock_path(base)}"
        on_progress(f"MAKING {name} with mmdebstrap of the Debian packages in {lock_path}")
        bootstrap.require_mmdebstrap(on_progress)
        info = bootstrap.bootstrap(engine, base, lock, name, host)
    # No registry has it, so its image ID stands for the digest. The build's first layer installs
    # the other packages of the lock.
    return BaseContext(
        reference=name,
        origin="bootstrapped",
        digest=info.digest,
        packages=lock.serialize_only(lock.layer),
    )


def name_of_made(base: Base, labels: Mapping[str, str]) -> str:
    """Return the name of a base that is made here: `truetag-base:bookworm-53c4a35f26e4`.

    The name has a digest of `labels`, which say of which packages the base is made, and how. So two
    workspaces with different locks, which build on one engine, do not take each other's base.
    """
    made_of = json.dumps(dict(labels), sort_keys=True)
    digest = sha256(made_of.encode())
    name = f"{BOOTSTRAPPED}:{base.suite}-{digest[:12]}"
    if base.platform.suffix:
        name += f"-{base.platform.suffix}"
    return name


def _find_or_pull(
    engine: Engine,
    base: Base,
    reference: str,
    note: str,
    on_progress: Callable[[str], None],
) -> ImageInfo | None:
    """Return the image of a reference, for the base's platform, from the engine or a registry.

    None if the engine lacks it, and no registry answers that has it.

    `note` follows the reference in the line of progress about pulling.
    """
    info = engine.find(reference)
    # The engine may have the image of another platform under this name.
    if info and info.architecture == base.platform.architecture:
        return info
    # Ask for the digest to see whether a registry answers and has the image.
    if engine.registry_digest(reference) is None:
        return None
    on_progress(f"pulling {reference}{note}")
    return engine.pull(reference, platform=base.platform)


def _digest_of(info: ImageInfo) -> str:
    """Return the digest of an image in a registry; of one that none has, of its configuration."""
    return info.digests[0].rpartition("@")[2] if info.digests else info.digest


def _read_custom(
    engine: Engine, base: Base, info: ImageInfo, reference: str, on_progress: Callable[[str], None]
) -> BaseContext:
    """Return the facts of a custom base: its digest, its Python, and whether it has apt.

    A custom base is any image that the user named (`reference`), with --base or in matrix.yaml.
    A script reads the facts in a container of it. `base` says what our images need of it, such as
    the release of Python. Raises UserError, with every reason, if they can't be built on it.
    """
    program = (TEMPLATES / "base" / "read_base.sh").read_text(encoding="utf-8")
    user = str(user_overlay.USER)
    command_line = ["sh", "-c", program, "sh", str(base.python), user]
    facts = custom_base.parse_facts(_run_in_base(engine, reference, command_line, user="0"))
    on_progress(f"{reference}: {facts}")

    obstacles = list(custom_base.find_obstacles(base, facts))
    # A Python below /root, for example, can be started by root only.
    if facts.python and not _can_start(engine, reference, facts, user):
        obstacles.append(f"users other than root can't start its {facts.python}")
    if obstacles:
        then = "change it, or take another one; docs/engines.md lists what a base must have"
        raise wrong(reference, f"can't be built on: {'; '.join(obstacles)}", then)
    return BaseContext(
        reference=reference,
        origin="custom",
        digest=_digest_of(info),
        python=facts.python,
        has_apt=facts.has_apt,
    )


def _run_in_base(engine: Engine, reference: str, words: Sequence[str], *, user: str) -> str:
    """Run a command in a container of a base image, and return what it prints.

    `reference` names the base, `words` are the command, and `user` is the user who runs it. The
    container has no network. Raises UserError, with the last 300 characters of the output, if the
    command fails.
    """
    spec = ContainerSpec(reference, words, name=f"{reference} (reading it)", user=user)
    with engine.container(spec) as container:
        finished = container.run(timeout=600)
    if finished.code != 0:
        output = (finished.stderr or finished.stdout).strip()
        cause = f"can't be read: `{words[0]}` ended with {finished.code} ({output[-300:]})"
        raise wrong(reference, cause, "name another base with --base REF, or in matrix.yaml")
    return finished.stdout


def _can_start(engine: Engine, reference: str, facts: BaseFacts, user: str) -> bool:
    """Return whether a user can start an interpreter of a base, and read its standard library.

    `facts` are those of the base: its interpreter, and the modules that root can import there.
    Those that it lacks say nothing about users, and `find_obstacles` is about them.
    """
    modules = ", ".join(["encodings", *facts.modules])
    words = [facts.python, "-I", "-c", f"import {modules}"]
    name = f"{reference} (starting Python)"
    spec = ContainerSpec(reference, words, name=name, user=user)
    with engine.container(spec) as container:
        return container.run(timeout=600).code == 0


def made_of_packages(images: Iterable[Image], root: Path) -> dict[str, Base]:
    """Return the bases of these images that are made of Debian packages, by the path of their lock.

    These have no pinned digest. `root` is the workspace. Raises UserError as `pinned` does.
    """
    digests = pinned(root)
    bases = {}
    for image in images:
        if image.base.suite and image.base.reference not in digests:
            bases[debian.lock_path(image.base)] = image.base
    return bases


def pinned(root: Path) -> Mapping[str, str]:
    """Return the digests that the workspace in `root` pins, by reference; none without the file.

    Raises UserError for a file that is not `reference: sha256:...`.
    """
    file = root / PINS_FILE
    if not file.is_file():
        return {}
    try:
        data = yaml.safe_load(file.read_text(encoding="utf-8", errors="replace")) or {}
    except yaml.YAMLError as error:
        raise wrong(PINS_FILE, f"is no YAML: {' '.join(str(error).split())}", _PIN) from None
    if not isinstance(data, dict) or not all(
        str(value).startswith("sha256:") for value in data.values()
    ):
        cause = "has an entry that does not read `REFERENCE: sha256:DIGEST`"
        raise wrong(PINS_FILE, cause, _PIN)
    return data
