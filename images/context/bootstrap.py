"""A base image made on this machine: a root file system of the Debian packages of a lock, with mmdebstrap."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

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
_CHUNK = 1 << 20

# What Debian's own slim images leave out; copyright files stay, as the licences ask.
_DPKG_OPTIONS = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
)
# mmdebstrap leaves the host's apt options in the image: they may hold a proxy. The rest differs from run to run, or a
# later step would delete it, and what stands in a layer for a deleted file bears the deletion's time. /etc/hosts is
# there as engines provide one to each step: where there is none, old ones make and delete it, and date the folder so.
_STRIP = (
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/cache/ldconfig/aux-cache "$1"/var/cache/debconf/*-old '
    '"$1"/var/lib/dpkg/*-old; rm -rf "$1"/var/log/* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/tmp/*; '
    'rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow-; '
    ': > "$1"/etc/machine-id; : > "$1"/etc/resolv.conf; : > "$1"/etc/hosts; echo truetag > "$1"/etc/hostname'
)


def bootstrap(
    engine: Engine, base: Base, lock: DebianLock, name: str, host: HostSettings
) -> ImageInfo:
    """Make a base on this machine. The lock decides its ID, and nothing else does."""
    with tempfile.NamedTemporaryFile(prefix="truetag-base-") as spool:
        layer = hashlib.sha256()
        for chunk in _root_file_system(base, lock, host):
            layer.update(chunk)
            spool.write(chunk)
        spool.flush()
        # OCI image specification, with the files' time for that of its making.
        created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        config = {
            "architecture": lock.architecture,
            "os": "linux",
            "created": created,
            "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["bash"], "Labels": labels(lock)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.hexdigest()}"]},
            "history": [{"created": created, "created_by": f"mmdebstrap {lock.suite}"}],
        }
        files: dict[str, bytes | Path] = {
            "config.json": json.dumps(config, sort_keys=True).encode(),
            "layer.tar": Path(spool.name),
            "manifest.json": json.dumps(
                [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
            ).encode(),
        }
        return engine.load(files, name)


def labels(lock: DebianLock) -> dict[str, str]:
    """How a base is made, and of which packages: one that an older release or lock made is made anew."""
    made = repr((_DPKG_OPTIONS, _STRIP, EPOCH, _PATH, _sources(lock)))
    recipe = f"{lock.suite} {sha256(made.encode())[:12]}"
    packages = sha256(repr(sorted(lock.base.items())).encode())
    return {"dev.truetag.base": recipe, "dev.truetag.base-packages": packages}


def _sources(lock: DebianLock) -> str:
    """What the image has: Debian's own mirror, wherever the packages came from."""
    addresses = {archive: own for archive, (_, own) in debian.ARCHIVES.items()}
    return "\n\n".join(debian.source_lines(lock.suite, addresses))


def require_mmdebstrap(on_progress: Callable[[str], None]) -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        then = "as root: `apt-get update`, `apt-get install mmdebstrap`; or give a base you have: --base REF"
        raise failed(
            "mmdebstrap", "is not installed, and making a base without a registry needs it", then
        )
    from images.host import apt  # most machines have a registry or mmdebstrap

    on_progress("installing mmdebstrap with apt-get")
    apt.install("mmdebstrap", "debian-archive-keyring")


def _root_file_system(base: Base, lock: DebianLock, host: HostSettings) -> Iterator[bytes]:
    """The tar of a minimal Debian, streamed from mmdebstrap. Raises UserError when it fails."""
    # For another processor. mmdebstrap's own check needs a package (arch-test): a program that does not run says so.
    other_processor = [f"--architectures={lock.architecture}", "--skip=check/qemu"]
    with tempfile.TemporaryDirectory(prefix="truetag-debian-") as scratch:
        Path(scratch).chmod(0o755)  # mmdebstrap may read it as another user
        # A repository of the base's packages, each checked by its hash.
        file, repository = Path(scratch, "lock"), Path(scratch, "packages")
        file.write_bytes(lock.part(lock.base))
        words = [
            "sh",
            str(TEMPLATES / "scripts" / "debian_repository.sh"),
            str(file),
            str(repository),
        ]
        variables = {**os.environ, **dict(debian.ARCHIVES.values()), **host.mirrors}
        done = subprocess.run(
            words, env=variables, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            failure = classify("", done.stderr.splitlines())
            cause = f"{failure.cause} ({host.redact(failure.line)})"
            raise failed(f"locks/{debian.place(base)}", cause, failure.then)
        command = [
            "mmdebstrap",
            "--variant=minbase",
            *([] if base.platform is of_machine(os.uname().machine) else other_processor),
            f"--include={','.join(debian.INCLUDED)}",
            "--format=tar",
            *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
            f"--customize-hook={_STRIP}; printf '%s\\n' {shlex.quote(_sources(lock))} >\"$1\"/etc/apt/sources.list",
            lock.suite,
            "-",
            f"deb [trusted=yes] copy://{repository} ./",
        ]
        environment = {
            **os.environ,
            "SOURCE_DATE_EPOCH": str(EPOCH),
            "DEBIAN_FRONTEND": "noninteractive",
        }
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            said: deque[str] = deque(maxlen=100)
            stderr = process.stderr or ()
            lines = (line.decode(errors="replace").strip() for line in stderr)
            listener = threading.Thread(target=said.extend, args=(lines,), daemon=True)
            listener.start()
            try:
                while process.stdout and (chunk := process.stdout.read(_CHUNK)):
                    yield chunk
            except BaseException:
                process.terminate()
                raise
            listener.join()
    if process.returncode != 0:
        failure = classify("", said)
        then = f"is there space in /tmp? {debian.how_to_remake()}"
        raise failed(
            f"mmdebstrap {lock.suite}",
            f"failed: {host.redact(failure.line or failure.cause)}",
            then,
        )
