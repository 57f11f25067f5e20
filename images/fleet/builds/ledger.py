"""What `build --on` keeps while its jobs go on: a submitter that is killed loses neither them nor what they built.

A record was judged (`pairs/KEY/judged`) once its image has its name, if the verdict allows it.
"""

from __future__ import annotations

from collections.abc import Callable

from images.fleet.builds.model import BuildJob, BuildResult
from images.fleet.ledger import JobLedger


class BuildLedger(JobLedger[BuildJob, BuildResult]):
    """Builds below a folder, `OUT/builds`. A record is what a worker gave back of an image that it pushed."""

    _jobs, _records = BuildJob, BuildResult

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
