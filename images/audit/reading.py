"""Reads an image in containers that hold our own Python: no network, read-only root, few rights, bounded output.

Nothing of the image runs here. What its files say is text of strangers: all of it goes through `cleaned`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from images.audit.cleaning import cleaned
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.archive import Files
from images.errors import Problem, UserError
from images.validation import own_python
from images.validation.run import suite_files
from validate.claims import ClaimSet
from validate.evidence import Record

INSIDE = "/judge"
_MEMORY = 8 << 30
_PROCESSES = 512
_PRELOAD = "/etc/ld.so.preload"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds for a container in which our Python reads, for one that runs the image's, and for a probe in either;
    bytes that one may print.
    """

    container: float = 1200
    run: float = 1800
    probe: float = 600
    output: int = 64 << 20


class Reader:
    """Our own Python, packed once, for as many containers as an audit takes."""

    def __init__(self, engine: Engine, image: ImageInfo, limits: Limits) -> None:
        """Raises UserError where this machine's Python can't be taken along."""
        self._engine, self._image, self._limits = engine, image, limits
        self._python = own_python.files(INSIDE)

    def survey(self) -> Mapping[str, Any]:
        """What the image has (validate/survey/main.py). Raises UserError where that can't be read."""
        user = user_json(self._image, python="", start=None)
        lines = list(self._lines(["survey", f"{INSIDE}/user.json"], {**_suite(), "user.json": user}))
        found = next((found for line in lines if isinstance(found := _parsed(line), dict)), None)
        if found is None:
            raise _unread(self._image, lines)
        preload = self._file(_PRELOAD)
        told: dict[str, Any] = cleaned({**found, "preload": preload.decode("utf-8", "replace").split()})
        return told

    def probes(self, claims: ClaimSet, user: bytes, on_record: Callable[[Record], None]) -> list[Record]:
        """The records of static probes, measured for one Python environment."""
        files = {**suite_files(claims), "user.json": user}
        command = ["--claims", f"{INSIDE}/claims.json", "--user", f"{INSIDE}/user.json"]
        records = []
        for line in self._lines([*command, "--timeout", str(self._limits.probe)], files):
            if record := record_of(line):
                records.append(record)
                on_record(record)
        return records

    def _lines(self, arguments: Sequence[str], files: Files) -> Iterator[str]:
        """What our suite prints in a container of the image, whose files root reads and none may change."""
        command = [*own_python.command(INSIDE), f"{INSIDE}/validate", *arguments]
        spec = ContainerSpec(
            self._image.id,
            command,
            volumes=[INSIDE],
            # The loader reads this file whatever the environment says.
            binds={"/dev/null": _PRELOAD},
            env=own_python.environment(INSIDE),
            user="0",
            memory=min(_MEMORY, self._engine.facts.memory * 3 // 4),
            processes=_PROCESSES,
            capabilities=["DAC_READ_SEARCH"],
        )
        with self._engine.container(spec) as container:
            container.put({**self._python, **files}, INSIDE)
            container.start()
            for line in container.lines(self._limits.container, most=self._limits.output):
                yield line.text
            container.wait(timeout=60)

    def _file(self, path: str) -> bytes:
        """A file that our own containers hide, from one that never starts; empty where there is none."""
        with self._engine.container(ContainerSpec(self._image.id, ["true"])) as container:
            try:
                return container.get_file(path, most=1 << 16)
            except FileNotFoundError:
                return b""


def user_json(image: ImageInfo, *, python: str, start: Mapping[str, Any] | None) -> bytes:
    """How a user's process would start in the image, as validate/environment/user_environment.py reads it."""
    environ = {"HOME": "/root", **image.env}
    user = {"environ": environ, "directory": image.workdir or "/", "python": python, "start": start}
    return json.dumps(user).encode()


def record_of(line: str) -> Record | None:
    """One record as a suite printed it; None for any other line."""
    data = _parsed(line)
    try:
        return Record.from_json(cleaned(data)) if isinstance(data, dict) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _suite() -> Mapping[str, bytes]:
    return suite_files(ClaimSet(image="", claims=()))


def _parsed(line: str) -> Any:
    try:
        return json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None


def _unread(image: ImageInfo, lines: Sequence[str]) -> UserError:
    tail = " | ".join(str(cleaned(line)) for line in lines[-3:]) or "nothing was printed"
    name = image.tags[0] if image.tags else image.id
    return UserError(
        Problem(
            where=name,
            cause=f"could not be read: {tail}",
            then="`docker image inspect` says whether it is a Linux image for x86-64; report it if it is",
        ),
        code=1,
    )
