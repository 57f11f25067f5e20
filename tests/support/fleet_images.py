"""Small images for fleets: Python and two packages of the real parent, and thin layers above that; some are broken."""

from collections.abc import Iterator
from contextlib import contextmanager

from images.engine import Engine
from tests.support.broken_images import NAME, SITE

PACKAGES = ("einops", "safetensors")
CLAIMS = (*(f"=S1 {name}" for name in PACKAGES), "=S2 files")
"""What the small images are held to: claims of the parent that need no more than they have, by two probes."""

FLEET = """\
workers:
  cpu: {slurm: {partition: cpu, minutes: 10}, ray: {resources: {engine: 1}}}
  h100: {arch: "9.0", gpus: 2, slurm: {partition: gpu, gres: "gpu:h100", minutes: 10}}
"""


def dockerfile() -> str:
    """The small image: files of the parent, and nothing that was made for the test."""
    site = " ".join(f"{SITE[1:]}/{name} {SITE[1:]}/{name}-*.dist-info" for name in PACKAGES)
    return f"""\
FROM {NAME} AS parent
USER root
RUN set -e; cd /; mkdir -p /thin/usr /thin/var/log; \\
    tar -c --exclude=__pycache__ bin lib lib64 etc/passwd etc/group usr/lib/os-release \\
        usr/bin/sh usr/bin/dash usr/bin/rm usr/bin/python3 usr/bin/python3.11 usr/lib/python3.11 \\
        opt/venv/bin/python3 opt/venv/pyvenv.cfg {site} \\
        | tar -x -C /thin; \\
    ldd usr/bin/dash usr/bin/rm usr/bin/python3.11 usr/lib/python3.11/lib-dynload/*.so | grep -o '/lib[^ ]* (' | \\
    sort -u | while read file _; do mkdir -p /thin/usr${{file%/*}}; cp -L $file /thin/usr$file; done
FROM scratch
COPY --from=parent /thin /
ENV PATH=/opt/venv/bin:/usr/bin:/bin
"""


@contextmanager
def thin_images(engine: Engine, prefix: str) -> Iterator[tuple[str, ...]]:
    """Tags of two sound images and of one that lacks a package, removed afterwards."""
    below = f"{prefix}-small"
    commands = {"00": "true", "01": "true", "gone": f"rm -r {SITE}/einops"}
    tags = tuple(f"{prefix}-{word}" for word in commands)
    try:
        engine.build({"Dockerfile": dockerfile().encode()}, below, network="none")
        for tag, command in zip(tags, commands.values(), strict=True):
            text = f"FROM {below}\nUSER root\nRUN echo {tag} >/var/log/own && {command}\nUSER 1001\n"
            engine.build({"Dockerfile": text.encode()}, tag, network="none")
        yield tags
    finally:
        for tag in (*tags, below):
            engine.remove(tag, force=True)
