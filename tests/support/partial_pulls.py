"""What podman fetches when torch moves: an image, then a newer one, with gzip, zstd and zstd:chunked layers.

By hand, as root, with 45 GB of free disk; OLD and NEW are images of this machine's engine:

    python -m tests.support.partial_pulls cu130-torch211 cu130-torch212

Bytes are those that passed the loopback of a network of its own, not what podman says. Podman and skopeo are trixie's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from images.bench import loopback, network
from images.bench.results import busy_now, load_now
from images.commands import trials
from images.engine import Engine, ignore
from images.publish.compression import Compression
from images.publish.push import PushJob, Tally, push
from images.registry.client import Registry
from images.registry.reference import Repository
from tests.support.debian_tools import bootstrap

CHUNKED = "zstd-chunked"
FORMATS = (str(Compression.GZIP), str(Compression.ZSTD), CHUNKED)
PACKAGES = "ca-certificates,podman,skopeo"
_SCRIPT = Path(__file__).with_name("podman_root.sh")
_STORAGE = """[storage]
driver = "overlay"
graphroot = "/own/storage"
runroot = "/run/storage"
[storage.options.pull_options]
enable_partial_images = "true"
insecure_allow_unpredictable_image_contents = "{unpredictable}"
"""
"""The second switch lets podman take images whose tars it can't rebuild to compare their digests; off, as by default,
it takes those with tar-split data alone (containers-storage.conf(5))."""


@dataclass(frozen=True)
class Podman:
    """Podman and skopeo of another suite; `home` is /own for them."""

    root: Path
    home: Path
    socket: str
    """The Docker Engine's."""

    def run(self, *command: str) -> str:
        """What a command prints. Raises RuntimeError with its errors."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", str(_SCRIPT)]
        done = subprocess.run(
            [*enter, str(self.root), str(self.home), self.socket, *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def forget_all(self, host: str, *, unpredictable: bool) -> None:
        """Begin with an empty storage."""
        shutil.rmtree(self.home / "storage", ignore_errors=True)
        config = self.root / "etc" / "containers"
        config.mkdir(parents=True, exist_ok=True)
        (config / "storage.conf").write_text(_STORAGE.format(unpredictable=str(unpredictable).lower()))
        (config / "registries.conf").write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
        (config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')


def main(old: str, new: str) -> None:
    """Prints a row a pull. Raises UserError, RuntimeError."""
    with (
        trials.open_engine(None) as engine,
        tempfile.TemporaryDirectory(dir=Path(engine.facts.data_root).parent, prefix="truetag-podman-") as name,
    ):
        work = Path(name)
        podman = Podman(work / "root", work / "own", engine.facts.url.removeprefix("unix://"))
        podman.home.mkdir()
        bootstrap("trixie", podman.root, "--variant=minbase", f"--include={PACKAGES}")
        store = work / "registry"
        store.mkdir()
        program = loopback.program(store, _say)
        with network.own_network(), loopback.serving(program, store) as host:
            _fill(engine, podman, host, {"old": old, "new": new}, work / "room")
            _say(f"{podman.run('podman', '--version')}, {podman.run('skopeo', '--version')}")
            for format_ in FORMATS:
                _pulls(podman, host, format_, unpredictable=False)
            _pulls(podman, host, CHUNKED, unpredictable=True)


def _fill(engine: Engine, podman: Podman, host: str, images: dict[str, str], room: Path) -> None:
    """Push each image as `publish` does, and have skopeo push it as zstd:chunked."""
    podman.forget_all(host, unpredictable=False)
    for name, image in images.items():
        info = engine.inspect(image)
        place = Repository.parse(f"{host}/{name}")
        wanted = (Compression.GZIP, Compression.ZSTD)
        with Registry(place) as target:
            room.mkdir(exist_ok=True)
            job = PushJob(engine=engine, info=info, target=target, wanted=wanted, cache=room)
            for compression, manifest in push(job, Tally(where=str(place), on_event=ignore)):
                target.put(manifest, compression)
            shutil.rmtree(room)
            podman.run(  # from uncompressed layers: skopeo 1.18 has no way to compress anew what is zstd already
                *("skopeo", "copy", "--dest-compress-format", "zstd:chunked", "--dest-tls-verify=false"),
                *("--src-daemon-host", "unix:///run/docker.sock", f"docker-daemon:{info.tags[0]}"),
                f"docker://{place}:{CHUNKED}",
            )
            sizes = [sum(layer.size for layer in target.get(format_).layers) for format_ in FORMATS]
        told = ", ".join(f"{format_} {size / 1e6:.0f} MB" for format_, size in zip(FORMATS, sizes, strict=True))
        _say(f"{name} is {image}, {info.id}: {told}")


def _pulls(podman: Podman, host: str, format_: str, *, unpredictable: bool) -> None:
    podman.forget_all(host, unpredictable=unpredictable)
    for name in ("old", "new"):
        os.sync()
        load, busy, before, start = load_now(), busy_now(), _received(), time.monotonic()
        podman.run("podman", "pull", "--quiet", f"{host}/{name}:{format_}")
        seconds, fetched = time.monotonic() - start, _received() - before
        found = podman.run("podman", "image", "inspect", "--format", "{{.Id}}", f"{host}/{name}:{format_}")
        _say(
            f"{format_}{' (unpredictable contents allowed)' if unpredictable else ''}, {name}: {fetched / 1e6:.0f} MB"
            f" in {seconds:.1f} s (load {load:.1f}, others {busy:.0%}), image ID {found[:12]}"
        )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _received() -> int:
    """Bytes that the loopback of this thread's network has passed."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, rest = line.strip().partition(":")
        if name == "lo":
            return int(rest.split()[0])
    raise RuntimeError("no loopback here")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
