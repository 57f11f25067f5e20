"""submitit's jobs, watched by squeue.

submitit itself asks sacct, which answers only where a site keeps accounts. squeue answers everywhere; a job that it no
longer lists is over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from submitit import SlurmJob
from submitit.slurm.slurm import SlurmInfoWatcher

_SETTINGS = ("SLURM_BITSTR_LEN=0", "SLURM_TIME_FORMAT=standard")
"""Without the limit, squeue cuts the list of an array's elements off after 64 characters."""
COMMAND = ("env", *_SETTINGS, "squeue", "--me", "--states=all", "--noheader", "--format=%i|%T|%N|%S|%r")
_OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT".split()  # squeue(1)
)
GONE = "GONE"
"""What we call the state of a job that squeue does not list."""
_SECONDS = 20
"""Between two questions, once a job has run for a while; submitit asks more often at first."""


class SqueueWatcher(SlurmInfoWatcher):
    """One question for all jobs of this user."""

    def __init__(self, delay_s: int) -> None:
        super().__init__(delay_s)
        self._asked: frozenset[str] = frozenset()
        """The jobs that were there when squeue was asked. Another thread submits more meanwhile: they are not gone."""

    def _make_command(self) -> list[str] | None:
        self._asked = frozenset(self._registered)
        return list(COMMAND) if self._registered - self._finished else None

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        listing = parsed(string if isinstance(string, str) else string.decode())
        return {job: dict(state_of(listing, job)) for job in self._asked}


class WatchedJob(SlurmJob[str]):
    """A job whose state comes from squeue."""

    watcher = SqueueWatcher(delay_s=_SECONDS)

    @property
    def told(self) -> str:
        """`runs on n1`, `waits (Resources)`."""
        info = self.watcher.get_info(self.job_id)
        if info.get("State") == "RUNNING":
            return f"runs on {info.get('NodeList')}"
        return f"waits ({info.get('Reason') or info.get('State') or 'submitted'})"

    @property
    def began(self) -> datetime | None:
        """When it began; None: it does not run, as far as squeue was asked."""
        info = self.watcher.get_info(self.job_id)
        return start_of(info) if info.get("State") == "RUNNING" else None

    @property
    def node(self) -> str:
        """Where it ran; empty: squeue has forgotten it."""
        return self.watcher.get_info(self.job_id, mode="force").get("NodeList", "")


def parsed(listing: str) -> dict[str, dict[str, str]]:
    """Job -> what squeue says of it. `12_3` is one of an array; `12_[4-9%2]` are those of it that it lists together."""
    found = {}
    for line in listing.splitlines():
        job, state, node, start, reason = [*(word.strip() for word in line.split("|", 4)), "", "", "", ""][:5]
        found[job] = {"State": state, "NodeList": node, "Start": start, "Reason": reason}
    return found


def start_of(info: Mapping[str, str]) -> datetime | None:
    """When squeue says that a job began, in this machine's zone as squeue has it; None: it says none."""
    try:
        return datetime.fromisoformat(info.get("Start", "")).astimezone()
    except ValueError:
        return None


def state_of(listing: Mapping[str, Mapping[str, str]], job: str) -> Mapping[str, str]:
    """What is known of a job. A state on the way (CONFIGURING, SUSPENDED, ...) is PENDING, as submitit knows few."""
    found = listing.get(job) or next((state for listed, state in listing.items() if _among(job, listed)), None)
    if found is None:
        return {"State": GONE}
    return found if found["State"] in {*_OVER, "RUNNING"} else {**found, "State": "PENDING"}


def _among(job: str, listed: str) -> bool:
    """Whether `12_4` is among `12_[0,2-5%4]`. An element that squeue has forgotten is not."""
    array, _, element = job.partition("_")
    other, bracket, indices = listed.partition("_[")
    if other != array or not bracket or not element.isdecimal():
        return False
    parts = indices.rstrip("]").partition("%")[0].split(",")
    return any(int(element) in _range(part) for part in parts)


def _range(text: str) -> range:
    """`3`, `2-5` or `0-10:2`; of anything else nothing."""
    found = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", text)
    if found is None:
        return range(0)
    first, last, step = found.groups()
    return range(int(first), int(last or first) + 1, int(step or 1))
