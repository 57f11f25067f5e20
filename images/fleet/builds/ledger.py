"""What `build --on` keeps while its jobs go on: a submitter that is killed loses neither them nor what they built.

pairs/KEY/judged    the record beside it was judged, and its image named if the verdict allows it
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.ledger import JobLedger

_JUDGED = "judged"


class BuildLedger(JobLedger[BuildJob, BuildResult]):
    """Builds below a folder, `OUT/builds`. A record is what a worker gave back of an image that it pushed."""

    _jobs, _records = BuildJob, BuildResult
    _files = (_JUDGED, *JobLedger._files)  # whoever is killed between the two leaves a record that is judged again

    def note_judged(self, key: str) -> None:
        """Note that a job's record was judged. The caller has booked the job."""
        with suppress(FileExistsError):
            (self.pair(key) / _JUDGED).touch(exist_ok=False)

    def done(self, key: str) -> bool:
        """Whether it is built, and its record was judged."""
        return super().done(key) and (self.pair(key) / _JUDGED).exists()

    def commit(self, result: BuildResult) -> None:
        """Keep what was built; a record that is there stays. A failed build is none: it is built again."""
        if result.digest and not result.problems:
            self.pair(result.key).mkdir(parents=True, exist_ok=True)
            self._keep(result)

    def kept(self, key: str, build: Callable[[], BuildResult]) -> BuildResult:
        """The record of a job; without one, the job is done and kept. A second worker of the same job waits here."""
        with self.judging(key):
            found = self.record(key)
            if found is None:
                found = build()
                self.commit(found)
        return found
