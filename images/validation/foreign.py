"""Trials of images of another processor: files are read natively, with a Python of this machine; programs run emulated.

What ran emulated is listed in the evidence (`host.emulated`), and verdicts and pages say it: an emulator is not the
processor that it stands for.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.config.platforms import of_machine
from images.engine import ImageInfo
from images.engine.archive import Files
from images.engine.runtime import Runtime
from images.errors import Problem, UserError
from images.host import emulation
from images.validation import own_python
from images.validation.emulated_processor import emulated_processor
from validate.claims import Claim, Tier

ROOT = "/judge"
"""Where a trial's files lie in its containers."""
READ_FILES = ("cpu.instructions",)
"""Probes of the cpu tier that read files alone."""
START_PROGRAMS = ("static.system", "static.toolkit")
"""Static probes that start programs of the image, which run emulated whoever starts them."""
OF_ITS_PYTHON = ("static.owners", "cpu.bytecode")
"""Probes that compare the image's files with what the Python that runs them has, or would compile: one of the same
release. Where that of this machine is another, the image's own runs them, emulated."""


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """How the files of a foreign image are read."""

    python: Mapping[str, Path]
    """A Python of this machine (own_python.files)."""
    user: bytes
    """How the image's own Python starts, as it answered, emulated."""
    emulator: str
    platform: str
    of_its_release: bool
    """Whether that Python is of the same release as the image's own."""

    def is_native(self, probe: str) -> bool:
        """Whether a Python of this machine runs a probe."""
        if probe in OF_ITS_PYTHON:
            return self.of_its_release
        return probe in READ_FILES or probe.startswith(f"{Tier.STATIC}.")

    def emulated(self, claims: tuple[Claim, ...]) -> dict[str, Any]:
        """What the evidence says of a run of these claims."""
        probes = {claim.probe for claim in claims if not claim.unproven}
        ran = sorted(probe for probe in probes if not self.is_native(probe) or probe in START_PROGRAMS)
        found = {"platform": self.platform, "by": self.emulator, "probes": ran}
        return {**found, "processor": emulated_processor(self.platform.partition("/")[2], 1).as_json()}


def is_foreign(engine: Runtime, image: ImageInfo) -> bool:
    """Whether the engine's machine runs an image's programs emulated."""
    return bool(image.architecture) and image.architecture != engine.facts.architecture


def command(inside: str, arguments: list[str]) -> list[str]:
    """The suite under our own Python."""
    return [f"{inside}/{own_python.PROGRAM}", "-I", "-S", "-X", "utf8", f"{inside}/validate", *arguments]


def files(found: Foreign) -> Files:
    return {**found.python, "user.json": found.user}


@contextmanager
def prepared(engine: Runtime, image: ImageInfo, user: str) -> Iterator[Foreign]:
    """A Python of this machine, packed, beside what the image's answered. Raises UserError: an engine of another
    processor than this machine's, or an answer that can't be read."""
    mine = of_machine(platform.machine())
    if mine is None or mine.architecture != engine.facts.architecture:
        cause = f"the engine's machine is of {engine.facts.architecture}, this one of {platform.machine()}"
        then = "validate on a machine of the image's own platform"
        raise UserError(Problem(where=image.id, cause=cause, then=then), code=1)
    try:
        release = str(json.loads(user)["start"]["release"])
    except (ValueError, LookupError, TypeError):
        cause = f"its Python did not say how it starts: {user.strip()[-300:] or 'nothing printed'}"
        then = "does it run at all? `docker run --rm IMAGE python3 --version`"
        raise UserError(Problem(where=image.id, cause=cause, then=then), code=1) from None
    with tempfile.TemporaryDirectory(prefix="truetag-python-") as folder:
        own = own_python.of_release(release)
        yield Foreign(
            python=own_python.files(ROOT, Path(folder), own),
            user=user.encode(),
            emulator=f"qemu-user {emulation.version()}".strip(),
            platform=f"linux/{image.architecture}",
            of_its_release=own is not None,
        )
