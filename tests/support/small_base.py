"""Small base images, for tests that weigh, push or export what they build: Debian's takes seconds each time."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from images.config.paths import TEMPLATES
from images.context.hosting import host_settings
from images.context.labels import BaseContext
from images.engine import Engine

SCRIPTS = TEMPLATES / "scripts"
_NAME = "truetag-test-small-base"
_DOCKERFILE = """\
FROM {base} AS whole
RUN set -e; mkdir -p /small/bin /small/dev /small/etc /small/opt /small/proc /small/sys /small/tmp; \\
    touch /small/etc/hosts /small/etc/resolv.conf; \\
    for name in sh cat chmod head ln ls mkdir rm seq sleep touch true; do cp -L /usr/bin/$name /small/bin/; done; \\
    ldd /small/bin/* | grep -o '/lib[^ ]*' | sort -u | while read file; do \\
        mkdir -p /small${{file%/*}}; cp -L $file /small$file; done
FROM scratch
COPY --from=whole /small /
ENV PATH=/bin
"""

_PYTHON = """\
FROM {base} AS whole
RUN --mount=type=bind,source=host,target=/run/host --mount=type=bind,source=scripts,target=/run/scripts \\
    sh /run/scripts/debian.sh 3.11 python3
RUN rm -r /usr/share/doc /usr/share/locale /usr/share/man /usr/share/zoneinfo /usr/lib/*/gconv /usr/lib/*/perl* \\
    /usr/share/perl* /usr/bin/perl* /usr/sbin /var/cache/*
FROM scratch
COPY --from=whole / /
ENV PATH=/usr/bin:/bin
"""


@contextmanager
def small_base(engine: Engine, base: BaseContext) -> Iterator[BaseContext]:
    """The programs of a base that steps of tests call, in one layer; the name is gone afterwards."""
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"  # several workers have one at a time
    dockerfile = _DOCKERFILE.format(base=base.reference).encode()
    engine.build({"Dockerfile": dockerfile}, tag, network="none")
    try:
        yield replace(base, reference=tag, digest=engine.inspect(tag).id)
    finally:
        engine.untag(tag)


@contextmanager
def python_base(engine: Engine, base: BaseContext) -> Iterator[str]:
    """Debian's Python on a base with its list of packages, less what no test reads."""
    tag = f"{_NAME}:{uuid.uuid4().hex[:12]}"
    scripts = {f"scripts/{path.name}": path.read_bytes() for path in SCRIPTS.iterdir() if path.is_file()}
    dockerfile = _PYTHON.format(base=base.reference).encode()
    engine.build({"Dockerfile": dockerfile, **host_settings().files(), **scripts}, tag)
    try:
        yield tag
    finally:
        engine.untag(tag)
