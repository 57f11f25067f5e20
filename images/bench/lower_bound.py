"""The lower bound of a cold build: an image's wheels, downloaded and unpacked by uv outside Docker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from uv import find_uv_bin

from images.bench import running
from images.locking import uv
from images.locking.inputs import lock_inputs
from images.locking.lock_file import Lock
from images.planning.image import Image


def lower_bound(image: Image, locked: Lock, beside: Path, environment: Mapping[str, str]) -> float:
    """Seconds to download and unpack an image's wheels with uv: all at once, no bytecode, no copy.

    `beside` is a folder on the disk to measure. Nobody who ends up with these files can leave any of this out.
    """
    target = lock_inputs(image).target
    with TemporaryDirectory(dir=beside) as folder, ThreadPoolExecutor() as pool:
        place = Path(folder)
        groups = {"toolkit": ("toolkit",), "packages": image.layers}
        start = time.monotonic()
        jobs = [
            pool.submit(_unpack, place, name, [locked.files[f"{layer}.txt"] for layer in layers], target, environment)
            for name, layers in groups.items()
        ]
        for job in jobs:
            job.result()
        return time.monotonic() - start


def _unpack(place: Path, name: str, files: list[bytes], target: uv.Target, environment: Mapping[str, str]) -> None:
    requirements = place / f"{name}.txt"
    requirements.write_bytes(b"".join(files))
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--link-mode", "hardlink"]
    command += ["--python-version", target.python, "--python-platform", target.platform, "--only-binary", ":all:"]
    command += ["--target", str(place / name), "--cache-dir", str(place / f"cache-{name}"), "-r", str(requirements)]
    running.run(command, cwd=place, env=uv.environment(environment))
