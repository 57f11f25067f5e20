"""Locked Debian packages in a real step: from the mirror, from the snapshot archive, from neither.

The packages are three small ones. This test serves the archives, which have the form of Debian's.
"""

import hashlib
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from images.context import render
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.engine.failures import BuildFailed
from images.locking import debian
from images.locking.debian import DebianLock

pytestmark = pytest.mark.engine
DAY, LATER = "20261126T021500Z", "20261128T000000Z"
PROGRAM = {
    "python3": "#!/bin/sh\necho 3.11\n",
    "truetag-tool": "#!/bin/sh\n",
    "truetag-needed": "#!/bin/sh\n",
}
PLACES = {
    "python3": "debian/pool/main/p/python3/python3_3.11.2-1_all.deb",
    "truetag-tool": "debian/pool/main/t/truetag-tool/truetag-tool_1.0+deb12u1_all.deb",
    "truetag-needed": (
        "debian-security/pool/updates/main/t/truetag-needed/truetag-needed_2~1_all.deb"
    ),
}
DOCKERFILE = """
FROM {base}
RUN --mount=type=bind,source=host,target=/run/host \\
    --mount=type=bind,source=scripts,target=/run/scripts \\
    --mount=type=bind,source=locks,target=/run/locks \\
    sh /run/scripts/debian.sh 3.11 python3 truetag-tool \\
    && dpkg-query -W -f '${{Package}} ${{Version}}\\n' \\
        python3 truetag-needed truetag-tool >/found \\
    && apt-mark showauto 'truetag*' >>/found
"""


SOURCES = """
FROM {base}
RUN rm -rf /etc/apt/sources.list.d && mkdir /etc/apt/sources.list.d \\
    && echo '# moved' >/etc/apt/sources.list \\
    && printf 'URIs: http://mirror.test/%s\\n' debian debian-security \\
        >/etc/apt/sources.list.d/debian.sources \\
    && echo 'deb http://archive.ubuntu.com/ubuntu/ noble main' >/etc/apt/sources.list.d/more.list \\
    && echo 'deb http://mirror.test/debian/ sid main' >>/etc/apt/sources.list.d/more.list \\
    && printf '#!/bin/sh\\ncat "$2" "${{2%%apt.conf}}parts/"* >/found\\n' >/usr/local/bin/apt-get \\
    && printf '#!/bin/sh\\necho 3.11\\n' >/usr/local/bin/python3 && chmod 755 /usr/local/bin/*
RUN --mount=type=bind,source=host,target=/run/host \\
    --mount=type=bind,source=scripts,target=/run/scripts sh /run/scripts/debian.sh 3.11 any
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """Path below the archives -> a package."""
    folder, found = tmp_path_factory.mktemp("packages"), {}
    for name, place in PLACES.items():
        tree, version = folder / name, place.split("_")[1]
        needs = "Depends: truetag-needed\n" if name == "truetag-tool" else ""
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: none\n"
            f"{needs}Description: {name}\n"
        )
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/bin" / name).write_text(PROGRAM[name])
        (tree / "usr/bin" / name).chmod(0o755)
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", tree, folder / "made.deb"], check=True
        )
        found[place] = (folder / "made.deb").read_bytes()
    return found


class Archives:
    """A mirror and a snapshot archive, below one folder that is served.

    Snapshots of `debian-security` are newer than the lock's day, as for packages that came between
    two imports.
    """

    def __init__(self, engine: Engine, base: BaseContext, folder: Path, address: str) -> None:
        self._engine, self._base, self._folder, self._address = engine, base, folder, address

    def put(self, files: Mapping[str, bytes], *, snapshot: bool) -> None:
        for place, content in files.items():
            archive, _, path = place.partition("/")
            day = LATER if archive == "debian-security" else DAY
            file = self._folder / (
                f"snapshot/archive/{archive}/{day}/{path}" if snapshot else f"mirror/{place}"
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def take(self, place: str) -> None:
        (self._folder / "mirror" / place).unlink()

    @property
    def variables(self) -> dict[str, str]:
        mirrors = {
            name: f"{self._address}/mirror/{archive}/"
            for archive, (name, _) in debian.ARCHIVES.items()
        }
        return {**mirrors, debian.SNAPSHOT: f"{self._address}/snapshot"}

    def install(self, locked: Mapping[str, bytes], dockerfile: str = DOCKERFILE) -> list[str]:
        """What dpkg says of them, and which apt installed for another. Raises BuildFailed."""
        digests = {place: hashlib.sha256(content).hexdigest() for place, content in locked.items()}
        lock = DebianLock(
            suite="bookworm", architecture="amd64", day=DAY, requested=(), base={}, layer=digests
        )
        host = HostSettings(mirrors=self.variables)
        context = {
            **host.files(),
            **render.scripts(),
            "locks/debian.txt": lock.serialize_only(lock.layer),
            "Dockerfile": dockerfile.format(base=self._base.reference).encode(),
        }
        tag = f"truetag-test-debian:{uuid.uuid4().hex[:12]}"
        self._engine.build(context, tag, network=host.network(local=True), no_cache=True)
        try:
            with self._engine.container(ContainerSpec(tag, ["cat", "/found"])) as box:
                return box.run(timeout=600).stdout.splitlines()
        finally:
            self._engine.remove(tag, force=True)


class Handler(SimpleHTTPRequestHandler):
    """Breaks off what a file `FILE.broken` lies beside."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        broken = Path(f"{source.name}.broken").exists()
        outputfile.write(source.read()[: 99 if broken else None])


@pytest.fixture
def archives(engine: Engine, base: BaseContext, tmp_path: Path) -> Iterator[Archives]:
    handler = partial(Handler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Archives(engine, base, tmp_path, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


INSTALLED = ["python3 3.11.2-1", "truetag-needed 2~1", "truetag-tool 1.0+deb12u1", "truetag-needed"]


def test_what_the_mirror_no_longer_has_comes_from_the_snapshot_archive_or_the_build_ends(
    archives: Archives, packages: Mapping[str, bytes]
) -> None:
    archives.put(packages, snapshot=False)
    assert archives.install(packages) == INSTALLED
    for place in list(packages)[1:]:
        archives.take(place)
    with pytest.raises(BuildFailed) as gone:
        archives.install(packages)
    said = str(gone.value)
    assert gone.value.failure.kind == "apt"
    assert (
        "a Debian package that the lock names can't be had" in said
        and "truetag-needed_2" in said
        and "404" in said
    )
    assert "lock -- NAME --upgrade" in said, "the next command"
    archives.put(packages, snapshot=True)
    assert archives.install(packages) == INSTALLED


def test_other_bytes_under_a_name_of_the_lock_end_the_build(
    archives: Archives, packages: Mapping[str, bytes]
) -> None:
    archives.put(packages, snapshot=True)
    archives.put({**packages, PLACES["python3"]: packages[PLACES["truetag-tool"]]}, snapshot=False)
    with pytest.raises(BuildFailed, match="a file is not the one that the lock names") as other:
        archives.install(packages)
    assert other.value.failure.kind == "hash" and "python3_3.11.2-1_all.deb" in str(other.value)


def test_a_download_that_breaks_off_is_fetched_from_the_snapshot_archive(
    archives: Archives, packages: Mapping[str, bytes], tmp_path: Path
) -> None:
    archives.put(packages, snapshot=False)
    archives.put(packages, snapshot=True)
    for place in packages:
        (tmp_path / f"mirror/{place}.broken").touch()
    assert archives.install(packages) == INSTALLED


def test_each_source_of_a_base_names_the_mirrors_and_those_of_other_archives_stay(
    archives: Archives,
) -> None:
    debian_mirror, security = (archives.variables[name] for name, _ in debian.ARCHIVES.values())
    conf, *lines = archives.install({}, SOURCES)
    assert 'SourceList "/dev/null"; Dir::Etc::SourceParts "/tmp/' in conf
    assert lines == [
        f"URIs: {debian_mirror}",
        f"URIs: {security}",
        "deb http://archive.ubuntu.com/ubuntu/ noble main",
        f"deb {debian_mirror} sid main",
        "# moved",
    ]
