"""Small images for fleets: Python and two packages of the real parent, and thin layers above that; some are broken."""

from collections.abc import Iterator
from contextlib import contextmanager

from images.engine import Engine
from tests.support.broken_images import NAME, SITE

PACKAGES = ("einops", "safetensors")
CLAIMS = (*(f"=S1 {name}" for name in PACKAGES), "=S2 files")
"""What the small images are held to: claims of the parent that need no more than they have, by two probes."""
LIBRARIES = ("libexpat.so.1", "libz.so.1", "libcrypto.so.3", "libssl.so.3")
SLOW = "seq 30000 | sed s,^,/srv/, | xargs mkdir"
"""Who reads the files looks into each folder: there is a middle to be killed in."""


FLEET = """\
workers:
  cpu: {slurm: {partition: cpu, minutes: 10}, ray: {resources: {engine: 1}}}
  h100: {arch: "9.0", gpus: 2, slurm: {partition: gpu, gres: "gpu:h100", minutes: 10}}
"""


def dockerfile(also: str) -> str:
    """The small image: files of the parent, and nothing that was made for the test."""
    libraries = " ".join(f"/usr/lib/x86_64-linux-gnu/{name}" for name in LIBRARIES)
    site = "\n".join(
        f"RUN --mount=from=parent,target=/parent cp -a /parent{SITE}/{name} /parent{SITE}/{name}-*.dist-info {SITE}/"
        for name in PACKAGES
    )
    return f"""\
FROM {NAME} AS parent
FROM truetag-base:bookworm
COPY --from=parent /usr/bin/python3.11 /usr/bin/python3 /usr/bin/
COPY --from=parent /usr/lib/python3.11 /usr/lib/python3.11
COPY --from=parent {libraries} /usr/lib/x86_64-linux-gnu/
COPY --from=parent /opt/venv/bin/python3 /opt/venv/pyvenv.cfg /opt/venv/bin/
RUN mv /opt/venv/bin/pyvenv.cfg /opt/venv/ && mkdir -p {SITE}
{site}
ENV PATH=/opt/venv/bin:/usr/bin:/bin
RUN {also}
"""


@contextmanager
def thin_images(engine: Engine, prefix: str, also: str = "true") -> Iterator[tuple[str, ...]]:
    """Tags of two sound images and of one that lacks a package, removed afterwards. `also`: a command below all."""
    below = f"{prefix}-small"
    commands = {"00": "true", "01": "true", "gone": f"rm -r {SITE}/einops"}
    tags = tuple(f"{prefix}-{word}" for word in commands)
    try:
        engine.build({"Dockerfile": dockerfile(also).encode()}, below, network="none")
        for tag, command in zip(tags, commands.values(), strict=True):
            text = f"FROM {below}\nUSER root\nRUN echo {tag} >/var/log/own && {command}\nUSER 1001\n"
            engine.build({"Dockerfile": text.encode()}, tag, network="none")
        yield tags
    finally:
        for tag in (*tags, below):
            engine.remove(tag, force=True)
