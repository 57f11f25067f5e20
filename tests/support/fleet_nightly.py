"""A nightly run with its bisection on Slurm: rounds and seconds of one worker and of several, by hand:

    python -m tests.support.fleet_nightly [SECONDS] [WORKERS]

The image is a cut of a real one, so a trial takes seconds. Each start of Python in it waits for SECONDS (default 1): it
stands for the work of a trial, which machines of their own would do side by side, and the nodes here share their cores.
Two packages together are planted as what breaks it.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from images.bench import loopback
from images.engine import BuildSpec, Engine, connect
from images.fleet import travel
from images.fleet.builds import sets
from images.fleet.builds.pool import Pool
from images.fleet.builds.sets import Parent, SetOptions
from images.fleet.config import Fleet, SlurmSettings
from images.fleet.executors.slurm import SlurmExecutor
from images.fleet.submission import Submission
from images.locking import lock_file
from images.nightly import canary
from images.nightly import run as nightly
from images.nightly.canary import Locked
from images.nightly.options import NightlyOptions
from images.nightly.run import ImageResult
from images.nightly.state import State
from images.planning import plan
from images.planning.image import Image
from images.registry.reference import Repository
from tests.support import fleet_images
from tests.support.broken_images import NAME, SITE
from tests.support.slurm_cluster import slurm_cluster
from tests.support.sources import SOURCES
from validate.claims import Tier

RANGES = {
    "accelerate": "",
    "datasets": "",
    "liger-kernel": ">=0.6.5,<0.7",
    "nvidia-ml-py": ">=12.560.30,<14",
    "peft": "",
    "safetensors": "",
}
"""What the canary may move, in small wheels; the image's other pins stay."""
CULPRITS = ("liger_kernel-0.6.5", "nvidia_ml_py-13")
TAG = f"truetag-fleet-nightly-{os.getpid()}"
FLEET = Fleet.model_validate({"workers": {"cpu": {"slurm": {"partition": "cpu", "minutes": 30}}}})


def dockerfile(seconds: float) -> str:
    """The small image with pip, and a Python that waits. Where pip has brought both culprits, einops is gone."""
    both = " && ".join(f"ls -d {SITE}/{name}*.dist-info >/dev/null 2>&1" for name in CULPRITS)
    lines = (
        "#!/bin/sh",
        f"sleep {seconds}",
        'case "$*" in *"pip install"*) ;; *) exec /opt/venv/bin/python3.real "$@" ;; esac',
        '/opt/venv/bin/python3.real "$@" || exit',
        f"if {both}; then rm -r {SITE}/einops; fi",
    )
    program = "\n".join(lines)
    return f"""\
FROM {NAME} AS parent
FROM {TAG}-small
RUN --mount=from=parent,target=/parent cp -a /parent{SITE}/pip /parent{SITE}/pip-*.dist-info {SITE}/
RUN mv /opt/venv/bin/python3 /opt/venv/bin/python3.real && ln -s python3 /opt/venv/bin/python \
 && echo {base64.b64encode(program.encode()).decode()} | base64 -d >/opt/venv/bin/python3 \
 && chmod 755 /opt/venv/bin/python3
USER 1001
"""


@contextmanager
def small_parent(engine: Engine, repository: Repository, folder: Path, seconds: float) -> Iterator[Parent]:
    """The image that versions are laid over, in the registry. Its names are removed afterwards."""
    spec = BuildSpec(network_mode="none")
    try:
        engine.build({"Dockerfile": fleet_images.dockerfile().encode()}, f"{TAG}-small", spec)
        engine.build({"Dockerfile": dockerfile(seconds).encode()}, TAG, spec)
        info = engine.inspect(TAG)
        reference = travel.send(engine, info, repository, folder / "push", lambda _event: None)
        yield Parent(reference=reference, digest=info.id, labels=dict(info.labels))
    finally:
        for name in (*([found.id] if (found := engine.find(TAG)) else []), f"{TAG}-small"):
            engine.remove(name, force=True)  # by ID: workers of this engine have pulled it under another name


@contextmanager
def index_of_moved(folder: Path) -> Iterator[str]:
    """An index on this machine that has what moves, so that no trial waits for a network. Yields its address."""
    image = planned_image()
    control = Locked(image=image, lock=lock_file.read(image))
    wanted = canary.requirements(control, SOURCES.matrix.nightly, {}, ranges(image))
    for change in canary.changes(control, canary.newest(control, wanted)):
        if change.after:
            place = folder / "simple" / change.name
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={place}"]
            subprocess.run([*command, f"{change.name}=={change.after}"], check=True)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/simple"
        server.shutdown()


def planned_image() -> Image:
    (planned,) = plan.select([NAME], SOURCES)
    assert planned.image is not None
    return planned.image


def ranges(image: Image) -> dict[str, str]:
    return {pin.name: RANGES.get(pin.name, f"=={pin.version}") for pin in image.pins}


def run_on(workers: int, parent: Parent, index: str, folder: Path) -> ImageResult:
    """The nightly run, with as many sets at once as there are nodes."""
    (planned,) = plan.select([NAME], SOURCES)
    image = planned_image()
    nodes = {f"n{number}": "" for number in range(1, workers + 1)}
    with slurm_cluster(folder / "slurm", nodes) as cluster:
        os.environ.update(cluster.environment)
        executor = SlurmExecutor(folder, SlurmSettings(setup=[f"export PIP_INDEX_URL={index}"]))
        submission = Submission.new(FLEET, executor, _say)
        given = SetOptions(
            sources=SOURCES, out=folder, cache=folder, bases={}, tiers=[Tier.STATIC], parents={NAME: parent}
        )
        with Pool(executor) as pool:
            options = NightlyOptions(
                sources=SOURCES,
                judge=sets.on_workers(pool, submission, given),
                state=State(folder / "state.jsonl", resume=False),
                now=lambda: datetime.now(UTC),
                results=folder / "results",
                ranges=ranges(image),
                tiers=[Tier.STATIC],
                tell=_say,
                at_once=workers,
                cancel=pool.cancel,
            )
            return nightly.run(planned, image, options)


def _say(name: str, text: str) -> None:
    sys.stderr.write(f"{datetime.now(UTC):%H:%M:%S} {name}  {text}\n")


def main(seconds: float, workers: int) -> None:
    """A line for each breakage."""
    with tempfile.TemporaryDirectory(prefix="truetag-nightly-") as name, connect(None) as engine:
        folder = Path(name)
        with (
            loopback.registry(folder / "registry") as host,
            small_parent(engine, Repository.parse(f"{host}/nightly"), folder, seconds) as parent,
            index_of_moved(folder) as index,
        ):
            start = time.monotonic()
            found = run_on(workers, parent, index, folder)
            whole = round(time.monotonic() - start)
        for line in found.breakages:
            row = line.model_dump(include={"rounds", "builds", "unresolved", "seconds", "candidates"})
            told = {"workers": workers, "whole run": whole, **row, "culprits": [str(one) for one in line.culprits]}
            sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0, int(sys.argv[2]) if len(sys.argv) > 2 else 4)
