"""The containers of an audit, without network, and with bounded memory and output.

In most, our own Python reads the image's files as root, and nothing of the image runs. In one of its own the image's
Python runs, as the image's user, without rights: what it prints is the word of strangers, and the report says so. All
text of the image goes through `cleaned`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from images.audit.cleaning import cleaned
from images.engine import ContainerSpec, Engine, ImageInfo
from images.engine.archive import Files
from images.engine.containers import TooMuchOutput
from images.engine.gpus import Attachment
from images.engine.runtime import TimedOut
from images.errors import Problem, UserError
from images.validation import own_python
from images.validation.containers import INSIDE, suite_files
from validate.claims import ClaimSet
from validate.evidence import Outcome, Record

_PRELOAD = "/etc/ld.so.preload"
_GIB = 1 << 30


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
        suite = suite_files(ClaimSet(image="", claims=()))
        lines = list(self._lines(["survey", f"{INSIDE}/user.json"], {**suite, "user.json": user}))
        found = next((found for line in lines if isinstance(found := _parsed(line), dict)), None)
        if found is None:
            tail = " | ".join(str(cleaned(line)) for line in lines[-3:]) or "nothing was printed"
            then = "`docker image inspect` says whether it is a Linux image for x86-64; report it if it is"
            where = self._image.tags[0] if self._image.tags else self._image.id
            raise UserError(Problem(where=where, cause=f"could not be read: {tail}", then=then), code=1)
        told: dict[str, Any] = cleaned({**found, "preload": self._preload()})
        return told

    def probes(self, claims: ClaimSet, user: bytes, on_record: Callable[[Record], None]) -> list[Record]:
        """The records of static probes, measured for one Python environment."""
        files = {**suite_files(claims), "user.json": user}
        command = ["--claims", f"{INSIDE}/claims.json", "--user", f"{INSIDE}/user.json"]
        records = []
        for line in self._lines([*command, "--timeout", str(self._limits.probe)], files):
            if record := _record(line):
                records.append(record)
                on_record(record)
        return records

    def _lines(self, arguments: Sequence[str], files: Files) -> Iterator[str]:
        """What our suite prints in a container of the image, whose files root reads and none may change."""
        spec = ContainerSpec(
            self._image.id,
            [*own_python.command(INSIDE), f"{INSIDE}/validate", *arguments],
            volumes=[INSIDE],
            # The loader reads this file whatever the environment says.
            binds={"/dev/null": _PRELOAD},
            env=own_python.environment(INSIDE),
            user="0",
            memory=min(8 * _GIB, self._engine.facts.memory * 3 // 4),
            processes=512,
            capabilities=["DAC_READ_SEARCH"],
        )
        with self._engine.container(spec) as container:
            container.put({**self._python, **files}, INSIDE)
            container.start()
            for line in container.lines(self._limits.container, most=self._limits.output):
                yield line.text
            container.wait(timeout=60)

    def _preload(self) -> list[str]:
        """What a file says that our own containers hide, from one that never starts."""
        with self._engine.container(ContainerSpec(self._image.id, ["true"])) as container:
            try:
                return container.get_file(_PRELOAD, most=1 << 16).decode("utf-8", "replace").split()
            except FileNotFoundError:
                return []


def measured_by_its_python(
    engine: Engine,
    image: ImageInfo,
    python: str,
    claims: ClaimSet,
    limits: Limits,
    gpus: Attachment,
    on_record: Callable[[Record], None],
) -> list[Record]:
    """What the image's own Python measured of these claims: records of probes that were asked for, each once. A probe
    that left none is recorded as such.
    """
    home = image.env.get("HOME") or "/root"
    tiers = ("cpu", "gpu") if gpus.attached else ("cpu",)
    command = [python, "-I", "-S", f"{INSIDE}/validate", "--claims", f"{INSIDE}/claims.json"]
    command += [word for tier in tiers for word in ("--tier", tier)]
    spec = ContainerSpec(
        image.id,
        [*command, "--timeout", str(limits.probe)],
        tmpfs=dict.fromkeys(("/tmp", home), f"rw,exec,nosuid,nodev,mode=1777,size={4 * _GIB}"),
        volumes=[INSIDE],
        env=gpus.environment(image.env),
        binds=gpus.binds,
        devices=gpus.devices,
        device_requests=gpus.device_requests,
        memory=min(12 * _GIB, engine.facts.memory * 3 // 4),
        processes=1024,
        capabilities=[],
    )
    found: dict[str, Record] = {}
    asked = list(dict.fromkeys(claim.probe for claim in claims.claims))
    end = ""
    try:
        with engine.container(spec) as container:
            container.put(suite_files(claims), INSIDE)
            container.start()
            for line in container.lines(limits.run, most=limits.output):
                record = _record(line.text) if line.stream == "stdout" else None
                if record and record.probe in asked and record.probe not in found:
                    found[record.probe] = replace(record, log=str(cleaned(record.log)))
                    on_record(record)
            container.wait(timeout=60)
    except (TimedOut, TooMuchOutput) as error:
        end = f": the container {error.problems[0].cause}"
    lost = f"the image's Python left no record of it{end}"
    silent = [Record(probe=one, outcome=Outcome.SILENT, seconds=0.0, log=lost) for one in asked if one not in found]
    return [*found.values(), *silent]


def user_json(image: ImageInfo, *, python: str, start: Mapping[str, Any] | None) -> bytes:
    """How a user's process would start in the image, as validate/environment/user_environment.py reads it."""
    environ = {"HOME": "/root", **image.env}
    user = {"environ": environ, "directory": image.workdir or "/", "python": python, "start": start}
    return json.dumps(user).encode()


def _record(line: str) -> Record | None:
    """One record as a suite printed it; None for any other line."""
    data = _parsed(line)
    try:
        return Record.from_json(cleaned(data)) if isinstance(data, dict) else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None
