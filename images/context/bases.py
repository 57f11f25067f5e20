"""The base image: by digest, by tag, made from a Debian mirror, or a custom base; its Python is read before use."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import yaml
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from images.context.hosting import HostSettings
from images.context.render import EPOCH, BaseContext
from images.engine import ContainerSpec, Engine, EngineError, EngineErrorKind, ImageInfo
from images.engine.failures import classify
from images.errors import Problem, UserError
from images.host.apt import install
from images.host.hashing import sha256
from images.planning.image import Base, Image, Pin

PINS_FILE = "locks/bases.yaml"
BASE_LABEL = "dev.truetag.base"
AUTO = "auto"
"""In place of a reference: the matrix's own base image."""
BOOTSTRAPPED = "truetag-base"
"""The repository name of bases that were made here."""

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
# there as engines lend one to each step: where there is none, old ones make and delete it, and date the folder so.
_STRIP = (
    'rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/cache/ldconfig/aux-cache "$1"/var/cache/debconf/*-old '
    '"$1"/var/lib/dpkg/*-old; rm -rf "$1"/var/log/* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/tmp/*; '
    'rm -f "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow-; '
    ': > "$1"/etc/machine-id; : > "$1"/etc/resolv.conf; : > "$1"/etc/hosts; echo truetag > "$1"/etc/hostname'
)


class Origin(StrEnum):
    """Where a base came from. Stands in the image's labels."""

    DIGEST = "digest"
    TAG = "tag"
    BOOTSTRAPPED = "bootstrapped"
    CUSTOM = "custom"


@dataclass(frozen=True, kw_only=True)
class BasePython:
    """The `python3` that a base brings, and what is installed for it."""

    executable: str
    prefix: str
    version: str
    is_venv: bool
    externally_managed: bool
    """pip refuses to install into it (PEP 668)."""
    has_pip: bool
    packages: Mapping[str, str]
    """Canonical distribution name to version."""
    torch_cuda: str | None
    """The CUDA that an installed torch was made for; None without torch, or for a CPU torch."""


@dataclass(frozen=True, kw_only=True)
class AcquiredBase:
    """A base that the engine has."""

    reference: str
    """What goes after FROM."""
    digest: str
    """`sha256:...` of the registry's manifest where it came from one, else the image ID."""
    origin: Origin
    python: BasePython | None


@dataclass(frozen=True, kw_only=True)
class Contradiction:
    """A base holds another version of something that is pinned."""

    pin: Pin
    found: str

    def __str__(self) -> str:
        return f"{self.pin.name}: the base has {self.found}, the image needs {self.pin.requirement.partition('==')[2]}"


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """A base's packages against an image's pins: what stays, what can't be, what is still to be installed."""

    kept: tuple[Pin, ...]
    contradictions: tuple[Contradiction, ...]
    missing: tuple[Pin, ...]


def reconcile(pins: Sequence[Pin], packages: Mapping[str, str]) -> Reconciled:
    """Compare pins with what is installed (canonical name to version), as versions."""
    kept, contradictions, missing = [], [], []
    for pin in pins:
        found = packages.get(pin.name)
        if found is None:
            missing.append(pin)
        elif _satisfies(found, pin):
            kept.append(pin)
        else:
            contradictions.append(Contradiction(pin=pin, found=found))
    return Reconciled(kept=tuple(kept), contradictions=tuple(contradictions), missing=tuple(missing))


def _satisfies(found: str, pin: Pin) -> bool:
    """2.11.0+cu130 is a 2.11.0, and so is one that a vendor built (+nv25.1); a CPU build never is."""
    try:
        version, wanted = Version(found), Version(pin.version)
    except InvalidVersion:
        return found == pin.version
    local = version.local or ""
    return Version(version.public) == wanted and (local == pin.local if pin.local else local.split(".")[0] != "cpu")


# Two builds at once need the same base: the second finds what the first has made, and dpkg is run once.
_ONE_AT_A_TIME = threading.Lock()


def acquire(
    engine: Engine,
    base: Base,
    wanted: str = AUTO,
    *,
    pinned: Mapping[str, str],
    host: HostSettings,
    say: Callable[[str], None],
) -> AcquiredBase:
    """Have a base in the engine. `wanted` is `auto` or the reference of a custom base.

    auto: the pinned digest, else the tag (one that is here, else the registry's), else a root file system bootstrapped
    from a Debian mirror. `say` gets a sentence about everything that isn't the ordinary way. Raises UserError.
    """
    with _ONE_AT_A_TIME:
        if wanted != AUTO:
            return _custom(engine, wanted, say)
        found = _by_digest(engine, base, pinned, say) or _by_tag(engine, base, say)
        return found or _bootstrapped(engine, base, host, say)


def _custom(engine: Engine, reference: str, say: Callable[[str], None]) -> AcquiredBase:
    info = engine.find(reference)
    if info is None:
        say(f"pulling {reference}")
        info = engine.pull(reference)
    python = read_python(engine, reference)
    return AcquiredBase(reference=reference, digest=_digest(info), origin=Origin.CUSTOM, python=python)


def _by_digest(
    engine: Engine, base: Base, pinned: Mapping[str, str], say: Callable[[str], None]
) -> AcquiredBase | None:
    digest = pinned.get(base.reference)
    if digest is None:
        return None
    reference = f"{base.reference.rpartition(':')[0]}@{digest}"
    if engine.find(reference) is None:
        if engine.registry_digest(reference) is None:
            say(f"no registry answers, so {base.reference} can't be had by its pinned digest")
            return None
        say(f"pulling {reference}")
        engine.pull(reference)
    return AcquiredBase(reference=reference, digest=digest, origin=Origin.DIGEST, python=read_python(engine, reference))


def _by_tag(engine: Engine, base: Base, say: Callable[[str], None]) -> AcquiredBase | None:
    info = engine.find(base.reference)
    if info is None:
        if engine.registry_digest(base.reference) is None:
            return None
        say(f"pulling {base.reference} by its tag: no digest is pinned (`nox -s pin`)")
        info = engine.pull(base.reference)
    python = read_python(engine, base.reference)
    return AcquiredBase(reference=base.reference, digest=_digest(info), origin=Origin.TAG, python=python)


def _digest(info: ImageInfo) -> str:
    return info.digests[0].rpartition("@")[2] if info.digests else info.id


# --- reading a base's Python ----------------------------------------------------------------------------------------


def read_python(engine: Engine, reference: str) -> BasePython | None:
    """The Python that `python3` names in an image, read in a container with no network; None if there is none.

    Raises UserError when there is one that can't run.
    """
    script = importlib.resources.files("images.context").joinpath("read_base.py").read_text()
    spec = ContainerSpec(reference, ["python3", "-I", "-c", script], name=f"{reference} (reading its Python)")
    with engine.container(spec) as box:
        try:
            done = box.run(timeout=120)
        except EngineError as error:
            if error.kind is EngineErrorKind.NO_COMMAND:
                return None
            raise
    if done.exit.code == 127:  # what the init process says when there is no such command
        return None
    if done.exit.code != 0:
        raise UserError(
            Problem(
                where=reference,
                cause=f"its python3 can't be run: {(done.stderr or done.stdout).strip()[-300:]}",
                then="give another base with --base REF",
            )
        )
    return python_of(json.loads(done.stdout))


def python_of(found: Mapping[str, Any]) -> BasePython:
    """What `read_base.py` printed, with canonical package names."""
    packages = {canonicalize_name(name): version for name, version in found["packages"].items()}
    return BasePython(**{**found, "packages": packages})


# --- pinning --------------------------------------------------------------------------------------------------------


def load_pins(text: str) -> Mapping[str, str]:
    """References to digests, from the text of `locks/bases.yaml`; empty text has none. Raises UserError."""
    try:
        data = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UserError(Problem(where=PINS_FILE, cause=f"is no YAML: {error}", then="`nox -s pin` writes it")) from None
    if not isinstance(data, dict) or not all(str(value).startswith("sha256:") for value in data.values()):
        raise UserError(Problem(where=PINS_FILE, cause="is not `reference: sha256:...`", then="`nox -s pin` writes it"))
    return data


def pin(engine: Engine, bases: Sequence[Base]) -> dict[str, bytes]:
    """The file that pins these bases to what their registries serve now. Raises UserError when one doesn't answer."""
    digests, problems = {}, []
    for base in bases:
        digest = engine.registry_digest(base.reference)
        if digest is None:
            problems.append(Problem(where=base.reference, cause="no registry answers", then="`nox -s pin` elsewhere"))
        else:
            digests[base.reference] = digest
    if problems:
        raise UserError(problems, code=1)
    head = "# What the base images' tags meant when `nox -s pin` last ran. Generated.\n"
    return {PINS_FILE: (head + yaml.safe_dump(digests)).encode()}


# --- bootstrapping --------------------------------------------------------------------------------------------------


def _bootstrapped(engine: Engine, base: Base, host: HostSettings, say: Callable[[str], None]) -> AcquiredBase:
    if base.suite is None:
        raise UserError(
            Problem(
                where=base.reference,
                cause="no registry answers, and it is no Debian suite that could be made from a mirror",
                then="connect to a registry, or give a base you have: --base REF",
            ),
            code=1,
        )
    name = f"{BOOTSTRAPPED}:{base.suite}"
    info = engine.find(name)
    if info is not None and info.labels.get(BASE_LABEL) == _recipe(base.suite):
        say(f"no registry answers for {base.reference}: using {name}, made here before")
    else:
        say(f"no registry answers for {base.reference}: MAKING A BASE from a Debian mirror with mmdebstrap, as {name}")
        _require_mmdebstrap(say)
        info = bootstrap(engine, base.suite, name, host)
    return AcquiredBase(reference=name, digest=info.id, origin=Origin.BOOTSTRAPPED, python=read_python(engine, name))


def bootstrap(engine: Engine, suite: str, name: str, host: HostSettings) -> ImageInfo:
    """Make a base from a Debian mirror, on this machine. What the mirror has decides its ID, and nothing else does."""
    with tempfile.NamedTemporaryFile(prefix="truetag-base-") as spool:
        layer = hashlib.sha256()
        for chunk in _root_file_system(suite, host):
            layer.update(chunk)
            spool.write(chunk)
        spool.flush()
        config = json.dumps(_config(suite, layer.hexdigest()), sort_keys=True).encode()
        manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
        return engine.load({"config.json": config, "layer.tar": Path(spool.name), "manifest.json": manifest}, name)


def _config(suite: str, layer: str) -> dict[str, Any]:
    """An image's configuration (OCI image specification), with the files' time for that of its making."""
    created = datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {"Env": [f"PATH={_PATH}"], "Cmd": ["bash"], "Labels": {BASE_LABEL: _recipe(suite)}},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        "history": [{"created": created, "created_by": f"mmdebstrap {suite}"}],
    }


def _recipe(suite: str) -> str:
    """Suite, and how a base is made of it: one that an older release made is made anew."""
    return f"{suite} {sha256(repr((_DPKG_OPTIONS, _STRIP, EPOCH)).encode())[:12]}"


def _require_mmdebstrap(say: Callable[[str], None]) -> None:
    if shutil.which("mmdebstrap"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UserError(
            Problem(
                where="mmdebstrap",
                cause="is not installed, and making a base without a registry needs it",
                then="as root: `apt-get update`, `apt-get install mmdebstrap`; or give a base you have: --base REF",
            ),
            code=1,
        )
    say("installing mmdebstrap with apt-get")
    install("mmdebstrap", "debian-archive-keyring")


def _root_file_system(suite: str, host: HostSettings) -> Iterator[bytes]:
    """The tar of a minimal Debian, streamed from mmdebstrap. Raises UserError when it fails."""
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--include=ca-certificates",
        "--format=tar",
        *(f"--aptopt={name} {json.dumps(value)}" for name, value in sorted(host.apt.items())),
        *(f"--dpkgopt={option}" for option in _DPKG_OPTIONS),
        f"--customize-hook={_STRIP}",
        suite,
        "-",
        *_mirrors(suite),
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH), "DEBIAN_FRONTEND": "noninteractive"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        said: deque[str] = deque(maxlen=100)
        listener = threading.Thread(target=_collect, args=(process.stderr, said), daemon=True)
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
        raise UserError(
            Problem(
                where=f"mmdebstrap {suite}",
                cause=f"failed: {host.redact(failure.line or failure.cause)}",
                then="does `apt-get update` work here, has its mirror that suite, is there space in /tmp?",
            ),
            code=1,
        )


def _collect(stream: IO[bytes], lines: deque[str]) -> None:
    lines.extend(line.decode(errors="replace").strip() for line in stream)


def _mirrors(suite: str) -> list[str]:
    """The mirrors this machine's own apt uses for Debian, asked for another suite; none: mmdebstrap's default."""
    if not shutil.which("apt-get"):
        return []
    listing = _index_targets()
    if not listing and os.geteuid() == 0:  # apt tells of its sources only once it has read them
        subprocess.run(["apt-get", "-q", "update"], capture_output=True, check=False)
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


def base_context(base: AcquiredBase) -> BaseContext:
    """What the Dockerfile must know of the base that was acquired."""
    plain = BaseContext(reference=base.reference, origin=str(base.origin), digest=base.digest)
    if base.python is None:
        return plain
    return replace(
        plain,
        executable=base.python.executable,
        environment=base.python.prefix,
        python=True,
        kept=frozenset(base.python.packages),
    )


def require_no_contradiction(image: Image, base: AcquiredBase) -> None:
    """A base keeps what fits a pin. Raises UserError with all that contradicts one: it is never reinstalled."""
    if base.python is None:
        return
    wrong = []
    if not base.python.version.startswith(f"{image.python}."):
        wrong.append(f"Python {base.python.version}, the image promises {image.python}")
    reconciled = reconcile(image.pins, base.python.packages)
    wrong += map(str, reconciled.contradictions)
    if "torch" in base.python.packages and base.python.torch_cuda != str(image.wheel_cuda):
        made_for = f"CUDA {base.python.torch_cuda}" if base.python.torch_cuda else "the CPU or an unknown CUDA"
        wrong.append(f"torch: the base's is made for {made_for}, the image promises CUDA {image.wheel_cuda}")
    if wrong:
        cause = f"contradicts the pins of {image.name}: {'; '.join(wrong)}"
        then = "pin what it has in matrix.yaml, or take another base"
        raise UserError(Problem(where=base.reference, cause=cause, then=then))
