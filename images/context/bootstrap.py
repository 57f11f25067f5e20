"""Makes a base image with mmdebstrap: a root file system of the Debian packages of a lock."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from images.config.paths import TEMPLATES
from images.config.platforms import of_machine
from images.context.hosting import HostSettings
from images.context.templates import EPOCH
from images.engine import Engine, ImageInfo
from images.engine.failures import classify
from images.errors import failed
from images.host.hashing import sha256
from images.locking import debian
from images.locking.debian import DebianLock
from images.planning.image import Base

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LONGEST_REASON = 300
"""How many characters of mmdebstrap's own reason an error quotes."""
_CHUNK = 1 << 20
"""Bytes that are read from mmdebstrap at once."""

# dpkg does not install these files: Debian's slim images leave them out, too. Copyright files stay,
# because the licences ask for them.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
)
# 99mmdebstrap has the host's apt options, which may name a proxy. The other files differ from run
# to run, or a later step would delete them, and the mark of a deleted file bears the time of
# deletion. /etc/hosts is made because engines provide one to each step: if it is missing, old
# engines make and delete it, which changes the time of its folder.
_STRIP = (
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/cache/ldconfig/aux-cache '
    '"$1"/var/cache/debconf/*-old '
    '"$1"/var/lib/dpkg/*-old; rm -rf "$1"/var/log/* "$1"/var/cache/apt/* '
    '"$1"/var/lib/apt/lists/* "$1"/tmp/*; '
    'rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow-; '
    ': > "$1"/etc/machine-id; : > "$1"/etc/resolv.conf; : > "$1"/etc/hosts; '
    'echo truetag > "$1"/etc/hostname'
)


def bootstrap(
    engine: Engine, base: Base, lock: DebianLock, name: str, host: HostSettings
) -> ImageInfo:
    """Make a base on this machine, load it into the engine under `name`, and return its image.

    `lock` pins the Debian packages that it is made of. The image's ID depends on nothing but the
    lock. Raises UserError if mmdebstrap fails.
    """
    # The tar of all files is the image's only layer. It may be large, so it is kept on disk.
    with tempfile.NamedTemporaryFile(prefix="truetag-base-") as spool:
        layer_digest = hashlib.sha256()
        for chunk in _root_file_system(base, lock, host):
            layer_digest.update(chunk)
            spool.write(chunk)
        spool.flush()

        # An archive as `docker save` writes it, with one layer. The image's time of creation is
        # that of its files, so that the same layer always gives the same image ID.
        created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        config = {
            "architecture": lock.architecture,
            "os": "linux",
            "created": created,
            "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["bash"], "Labels": labels(lock)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest.hexdigest()}"]},
            "history": [{"created": created, "created_by": f"mmdebstrap {lock.suite}"}],
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        files: dict[str, bytes | Path] = {
            "config.json": json.dumps(config, sort_keys=True).encode(),
            "layer.tar": Path(spool.name),
            "manifest.json": json.dumps(manifest).encode(),
        }
        return engine.load(files, name)


def labels(lock: DebianLock) -> dict[str, str]:
    """Return the labels that say how a base is made, and of which packages.

    A base with other labels was made by an older release, or of an older lock.
    """
    settings = repr((_DPKG_OPTIONS, _STRIP, EPOCH, _PATH, _sources(lock)))
    packages = repr(sorted(lock.base.items()))
    return {
        "dev.truetag.base": f"{lock.suite} {sha256(settings.encode())[:12]}",
        "dev.truetag.base-packages": sha256(packages.encode()),
    }


def _sources(lock: DebianLock) -> str:
    """Return the image's sources.list: Debian's own mirror, wherever its packages came from."""
    addresses = {name: archive.address for name, archive in debian.ARCHIVES.items()}
    return "\n\n".join(debian.source_lines(lock.suite, addresses))


def require_mmdebstrap(on_progress: Callable[[str], None]) -> None:
    """Install mmdebstrap, the program that makes base images, with apt if it is missing.

    Raises UserError if mmdebstrap is missing and this user is not root or has no apt-get.
    """
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        cause = "is not installed, and making a base without a registry needs it"
        then = (
            "as root: `apt-get update`, `apt-get install mmdebstrap`; "
            "or give a base you have: --base REF"
        )
        raise failed("mmdebstrap", cause, then)
    from images.host import apt  # most machines have a registry or mmdebstrap

    on_progress("installing mmdebstrap with apt-get")
    apt.install("mmdebstrap", "debian-archive-keyring")


def _root_file_system(base: Base, lock: DebianLock, host: HostSettings) -> Iterator[bytes]:
    """Yield the tar of a minimal Debian in chunks, as mmdebstrap writes it.

    Raises UserError if a package can't be fetched, or if mmdebstrap fails.
    """
    with tempfile.TemporaryDirectory(prefix="truetag-debian-") as scratch:
        # mmdebstrap may run as another user, who must be able to enter the folder.
        Path(scratch).chmod(0o755)
        repository = Path(scratch, "packages")
        _make_repository(base, lock, host, repository)
        yield from _run_mmdebstrap(_mmdebstrap_command(base, lock, repository), lock.suite, host)


def _run_mmdebstrap(command: Sequence[str], suite: str, host: HostSettings) -> Iterator[bytes]:
    """Run mmdebstrap, and yield in chunks the tar that it writes to its standard output.

    Raises UserError, with mmdebstrap's reason, if it fails. `suite` is named in the error, and
    `host` keeps passwords out of it.
    """
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "DEBIAN_FRONTEND": "noninteractive",
    }
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        # `Popen` was given pipes, so neither stream is None.
        tar, stderr = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)
        # A thread reads the messages while the tar is read: a full pipe would stop mmdebstrap.
        messages: deque[str] = deque(maxlen=100)
        # A generator: the thread reads each line when mmdebstrap writes it. The last ones are kept.
        lines = (line.decode(errors="replace").strip() for line in stderr)
        listener = threading.Thread(target=messages.extend, args=(lines,), daemon=True)
        listener.start()
        try:
            while chunk := tar.read(_CHUNK):
                yield chunk
        except BaseException:
            # The caller stopped reading early, so mmdebstrap would wait forever to write more.
            process.terminate()
            raise
        listener.join()

    if process.returncode != 0:
        # `classify` reads an error of BuildKit and a log. Here is only a log, mmdebstrap's.
        failure = classify("", messages)
        # A line may name each package that was to be installed: 4,000 characters. The command is
        # at its beginning, and what went wrong may be at its end.
        reason = host.redact(failure.line or failure.cause)
        if len(reason) > _LONGEST_REASON:
            half = _LONGEST_REASON // 2
            reason = f"{reason[:half]} ... {reason[-half:]}"
        cause = f"failed: {reason}"
        then = f"if the mirror no longer has a package of the lock, {debian.how_to_remake()}"
        if "No space left" in reason:
            then = "free space in /tmp, then build again"
        raise failed(f"mmdebstrap {suite}", cause, then)


def _make_repository(base: Base, lock: DebianLock, host: HostSettings, repository: Path) -> None:
    """Fetch the Debian packages of a base image into a new repository, the folder `repository`.

    `lock` has them with their hashes, and those of the layer above the base, which are not fetched.
    A script fetches the packages: its list of them is put beside the folder. `host` has the mirrors
    to fetch from. Raises UserError if a package can't be fetched, or has another hash.
    """
    packages_of_base = lock.base
    package_list = repository.with_name("lock")
    package_list.write_bytes(lock.serialize_only(packages_of_base))
    script = TEMPLATES / "scripts" / "debian_repository.sh"
    # The script fetches from the mirrors that variables name: Debian's own, or those of the host.
    own_mirrors = {archive.variable: archive.address for archive in debian.ARCHIVES.values()}
    finished = subprocess.run(
        ["sh", str(script), str(package_list), str(repository)],
        env={**os.environ, **own_mirrors, **host.mirrors},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if finished.returncode != 0:
        # `classify` reads an error of BuildKit and a log. Here is only a log, the script's.
        failure = classify("", finished.stderr.splitlines())
        cause = f"{failure.cause} ({host.redact(failure.line)})"
        raise failed(f"locks/{debian.lock_path(base)}", cause, failure.then)


def _mmdebstrap_command(base: Base, lock: DebianLock, repository: Path) -> list[str]:
    """Return the mmdebstrap command that makes the base image of a Debian release, as a tar.

    The tar goes to standard output. Packages come from `repository`, a folder with those of the
    lock.
    """
    command = ["mmdebstrap", "--variant=minbase"]
    if base.platform is not of_machine(os.uname().machine):
        # The base is for another processor, whose programs must run here in an emulator. mmdebstrap
        # would check that first, with a further package (arch-test). We skip the check: if there is
        # no emulator, the first program that does not run says so.
        command += [f"--architectures={lock.architecture}", "--skip=check/qemu"]
    command += [f"--include={','.join(debian.EXTRA_PACKAGES_OF_BASE)}", "--format=tar"]
    command += [f"--dpkgopt={option}" for option in _DPKG_OPTIONS]
    sources = shlex.quote(_sources(lock))
    # mmdebstrap runs this shell code when all packages are installed; $1 is the new root. The code
    # removes files that differ from run to run (_STRIP), and names Debian's mirrors in place of the
    # repository.
    hook = f"{_STRIP}; printf '%s\\n' {sources} >\"$1\"/etc/apt/sources.list"
    command += [f"--customize-hook={hook}"]
    command += [lock.suite, "-", f"deb [trusted=yes] copy://{repository} ./"]
    return command
