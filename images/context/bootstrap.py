"""A base image made on this machine: a root file system from a Debian mirror, with mmdebstrap."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from images.config.platforms import Platform, of_machine
from images.context.hosting import HostSettings
from images.context.templates import EPOCH
from images.engine import Engine, ImageInfo
from images.engine.failures import classify
from images.errors import Problem, UserError
from images.host.hashing import sha256

BASE_LABEL = "dev.truetag.base"
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
    engine: Engine, suite: str, name: str, host: HostSettings, platform: Platform = Platform.AMD64
) -> ImageInfo:
    """Make a base from a Debian mirror, on this machine. What the mirror has decides its ID, and nothing else does."""
    with tempfile.NamedTemporaryFile(prefix="truetag-base-") as spool:
        layer = hashlib.sha256()
        for chunk in _root_file_system(suite, host, platform):
            layer.update(chunk)
            spool.write(chunk)
        spool.flush()
        # OCI image specification, with the files' time for that of its making.
        created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        config = {
            "architecture": platform.architecture,
            "os": "linux",
            "created": created,
            "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["bash"], "Labels": {BASE_LABEL: recipe(suite)}},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.hexdigest()}"]},
            "history": [{"created": created, "created_by": f"mmdebstrap {suite}"}],
        }
        files: dict[str, bytes | Path] = {
            "config.json": json.dumps(config, sort_keys=True).encode(),
            "layer.tar": Path(spool.name),
            "manifest.json": json.dumps(
                [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
            ).encode(),
        }
        return engine.load(files, name)


def recipe(suite: str) -> str:
    """Suite, and how a base is made of it: one that an older release made is made anew."""
    return f"{suite} {sha256(repr((_DPKG_OPTIONS, _STRIP, EPOCH)).encode())[:12]}"


def require_mmdebstrap(on_progress: Callable[[str], None]) -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        cause = "is not installed, and making a base without a registry needs it"
        then = "as root: `apt-get update`, `apt-get install mmdebstrap`; or give a base you have: --base REF"
        raise UserError(Problem(where="mmdebstrap", cause=cause, then=then), code=1)
    from images.host import apt  # most machines have a registry or mmdebstrap

    on_progress("installing mmdebstrap with apt-get")
    apt.install("mmdebstrap", "debian-archive-keyring")


def _root_file_system(suite: str, host: HostSettings, platform: Platform) -> Iterator[bytes]:
    """The tar of a minimal Debian, streamed from mmdebstrap. Raises UserError when it fails."""
    # mmdebstrap's own check of an emulator needs a package (arch-test); images/host/emulation.py has asked the kernel.
    emulated = [f"--architectures={platform.architecture}", "--skip=check/qemu"]
    command = [
        "mmdebstrap",
        "--variant=minbase",
        *([] if platform is of_machine(os.uname().machine) else emulated),
        "--include=ca-certificates",
        "--format=tar",
        *(f"--aptopt={name} {json.dumps(value)}" for name, value in sorted(host.apt.items())),
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
        f"--customize-hook={_STRIP}",
        suite,
        "-",
        *mirrors(suite),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "DEBIAN_FRONTEND": "noninteractive"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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
        cause = f"failed: {host.redact(failure.line or failure.cause)}"
        then = "does `apt-get update` work here, has its mirror that suite, is there space in /tmp?"
        raise UserError(Problem(where=f"mmdebstrap {suite}", cause=cause, then=then), code=1)


def mirrors(suite: str) -> list[str]:
    """The mirrors this machine's own apt uses for Debian, asked for another suite; none: mmdebstrap's default."""
    if not shutil.which("apt-get"):
        return []
    listing = _index_targets()
    if not listing and os.geteuid() == 0:  # apt tells of its sources only once it has read them
        from images.host import apt

        with contextlib.suppress(UserError):
            apt.install()  # the lists of packages alone
        listing = _index_targets()
    return mirror_lines(suite, listing)


def _index_targets() -> str:
    return subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def mirror_lines(suite: str, listing: str) -> list[str]:
    """apt source lines of a suite, from `ORIGIN|LABEL|COMPONENT|URI` lines. Those with credentials are left out.

    The lines stay in the base's sources.list: credentials would, too.
    """
    rows = [line.split("|") for line in listing.splitlines()]
    debian = [row for row in rows if len(row) == 4 and row[0] == "Debian" and row[2] == "main" and "@" not in row[3]]
    archive = next((uri for _, label, _, uri in debian if label == "Debian"), None)
    security = next((uri for _, label, _, uri in debian if label == "Debian-Security"), None)
    if archive is None:
        return []
    lines = [f"deb {archive} {suite} main"]
    if suite not in ("sid", "unstable"):
        lines.append(f"deb {archive} {suite}-updates main")
        if security:
            lines.append(f"deb {security} {suite}-security main")
    return lines
