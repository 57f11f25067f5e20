"""What podman fetches when torch moves: an image, then a newer one, with gzip, zstd and zstd:chunked layers.

By hand, as root, with 45 GB of free disk; OLD and NEW are images of this machine's engine:

    python -m tests.support.partial_pulls cu130-torch211 cu130-torch212

Bytes are those that passed the loopback of a network of its own, not what podman says. Podman is trixie's.
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

PACKAGES = "ca-certificates,podman"
_SCRIPT = Path(__file__).with_name("podman_root.sh")
_STORAGE = """[storage]
driver = "overlay"
graphroot = "/own/storage"
runroot = "/run/storage"
[storage.options.pull_options]
enable_partial_images = "true"
"""
"""Without `insecure_allow_unpredictable_image_contents`: podman makes each tar again and compares its digest
(containers-storage.conf(5))."""


@dataclass(frozen=True)
class Podman:
    """Podman of another suite; `home` is /own for it."""

    root: Path
    home: Path

    def run(self, *command: str) -> str:
        """What a command prints. Raises RuntimeError with its errors."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", str(_SCRIPT)]
        done = subprocess.run(
            [*enter, str(self.root), str(self.home), *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout.strip()

    def forget_all(self, host: str) -> None:
        """Begin with an empty storage."""
        shutil.rmtree(self.home / "storage", ignore_errors=True)
        config = self.root / "etc" / "containers"
        config.mkdir(parents=True, exist_ok=True)
        (config / "storage.conf").write_text(_STORAGE)
        (config / "registries.conf").write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
        (config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')


def main(old: str, new: str) -> None:
    """Prints a row a pull. Raises UserError, RuntimeError."""
    with (
        trials.open_engine(None) as engine,
        tempfile.TemporaryDirectory(dir=Path(engine.facts.data_root).parent, prefix="truetag-podman-") as name,
    ):
        work = Path(name)
        podman = Podman(work / "root", work / "own")
        podman.home.mkdir()
        bootstrap("trixie", podman.root, "--variant=minbase", f"--include={PACKAGES}")
        store = work / "registry"
        store.mkdir()
        program = loopback.program(store, _say)
        with network.own_network(), loopback.serving(program, store) as host:
            ids = _fill(engine, host, {"old": old, "new": new}, work / "room")
            _say(podman.run("podman", "--version"))
            for compression in Compression:
                _pulls(podman, host, compression, ids)


def _fill(engine: Engine, host: str, images: dict[str, str], room: Path) -> dict[str, str]:
    """Push each image as `publish` does, each compression alone, to time it. Name -> image ID."""
    ids = {}
    for name, image in images.items():
        info = engine.inspect(image)
        ids[name] = info.id
        place = Repository.parse(f"{host}/{name}")
        for compression in Compression:
            room.mkdir(exist_ok=True)
            with Registry(place) as target:
                job = PushJob(engine=engine, info=info, target=target, wanted=(compression,), cache=room)
                start = time.monotonic()
                ((_, manifest),) = push(job, Tally(where=str(place), on_event=ignore))
                target.put(manifest, _tag(compression))
            size = sum(layer.size for layer in manifest.layers)
            _say(f"{name} is {image}: {compression} {size / 1e6:.0f} MB, pushed in {time.monotonic() - start:.1f} s")
            shutil.rmtree(room)
    return ids


def _pulls(podman: Podman, host: str, compression: Compression, ids: dict[str, str]) -> None:
    podman.forget_all(host)
    for name, image_id in ids.items():
        os.sync()
        load, busy, before, start = load_now(), busy_now(), _received(), time.monotonic()
        podman.run("podman", "pull", "--quiet", f"{host}/{name}:{_tag(compression)}")
        seconds, fetched = time.monotonic() - start, _received() - before
        found = podman.run("podman", "image", "inspect", "--format", "{{.Id}}", f"{host}/{name}:{_tag(compression)}")
        same = "the same" if f"sha256:{found}" == image_id else f"another: {found}"
        _say(
            f"{compression}, {name}: {fetched / 1e6:.0f} MB in {seconds:.1f} s"
            f" (load {load:.1f}, others {busy:.0%}), image ID {same}"
        )


def _tag(compression: Compression) -> str:
    return compression.replace(":", "-")


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
