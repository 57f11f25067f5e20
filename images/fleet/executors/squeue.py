"""submitit's jobs, watched by squeue.

submitit itself asks sacct, which answers only where a site keeps accounts. squeue answers everywhere; a job that it no
longer lists is over.
"""

from __future__ import annotations

from submitit import SlurmJob
from submitit.slurm.slurm import SlurmInfoWatcher

_OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY REVOKED TIMEOUT".split()  # squeue(1)
)
_SECONDS = 20
"""Between two questions, once a job has run for a while; submitit asks more often at first."""


class SqueueWatcher(SlurmInfoWatcher):
    """One question for all jobs of this user."""

    def _make_command(self) -> list[str] | None:
        command = "squeue --me --array --states=all --noheader --format=%i|%T|%N"
        return command.split() if self._registered - self._finished else None

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """Job -> what squeue says of it; one of an array is `12_3`. What it does not list is GONE.

        A state on the way (CONFIGURING, SUSPENDED, ...) is PENDING, as submitit knows few.
        """
        found = {job: {"State": "GONE"} for job in self._registered}
        for line in (string if isinstance(string, str) else string.decode()).splitlines():
            job, state, node = [*(word.strip() for word in line.split("|")), "", ""][:3]
            if job in found:
                known = state if state in {*_OVER, "RUNNING"} else "PENDING"
                found[job] = {"State": known, "NodeList": node}
        return found


class WatchedJob(SlurmJob[str]):
    """A job whose state comes from squeue."""

    watcher = SqueueWatcher(delay_s=_SECONDS)

    @property
    def node(self) -> str:
        """Where it ran; empty: squeue has forgotten it."""
        return self.watcher.get_info(self.job_id, mode="force").get("NodeList", "")
