"""Debian's security updates of a tracked image: what is pending, and the rebuild that takes them.

What reads packages, asks the archive and builds is injected (`Security`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from images.locking import lock_file
from images.nightly import jobs, report
from images.nightly.canary import Locked
from images.nightly.options import NightlyOptions
from images.nightly.results import Change, Job, JobLine, Outcome
from images.nightly.state import Trial
from images.planning.image import Image
from images.planning.plan import Planned
from images.vulnerabilities import updates
from images.vulnerabilities.inventory import Inventory
from images.vulnerabilities.updates import PackageChange, Rebuilt


@dataclass(frozen=True, kw_only=True)
class Security:
    """Where packages and their updates are looked up, and what rebuilds. Each may raise UserError."""

    inventory: Callable[[Image], Inventory | None]
    """The packages of the image that people have; None: there is none to compare with."""
    pending: Callable[[Inventory], tuple[PackageChange, ...]]
    rebuild: Callable[[Image, Inventory, Sequence[PackageChange]], tuple[Trial, Rebuilt | None]]
    """The committed lock, built without a cache and validated; no Rebuilt where it could not be built."""


@dataclass(frozen=True, kw_only=True)
class SecurityUpdate:
    """What one image's rebuild came to. `log`: CHANGES.md; empty where a resumed run wrote it before."""

    line: JobLine
    log: str = ""
    left: int = 0
    """Updates that the rebuild did not take."""

    @property
    def broken(self) -> bool:
        """The rebuild is no good, or lacks updates itself."""
        return self.line.outcome in (Outcome.FAIL, Outcome.NOT_BUILT) or bool(self.left)


def run(planned: Planned, image: Image, security: Security, options: NightlyOptions) -> SecurityUpdate | None:
    """Look for updates of an image, and rebuild it where there are any; None: there is no image to compare with.

    Appends a line of job `rebuild`. Raises UserError: no lock, no archive, or an engine that does not answer.
    """
    before = security.inventory(image)
    if before is None:
        options.tell(planned.name, "rebuild: no image is here or published, so no packages are compared")
        return None
    control = Locked(image=image, lock=lock_file.read(image, options.locks))
    key = f"rebuild {before.digest} {control.hash}"
    if (known := options.state.find(key)) is not None:
        return SecurityUpdate(line=JobLine.model_validate(known["line"]), left=known["left"])
    if found := security.pending(before):
        made = _rebuilt(planned, control, (before, found), security, options)
    else:
        made = _current(planned, control, options)
    options.state.keep(key, {"line": made.line.model_dump(mode="json"), "left": made.left})
    options.tell(planned.name, report.job(made.line))
    return made


def _current(planned: Planned, control: Locked, options: NightlyOptions) -> SecurityUpdate:
    line = jobs.plain_line(planned, Job.REBUILD, Outcome.UNCHANGED, options, versions=control.hash)
    return SecurityUpdate(line=jobs.appended(line, options))


def _rebuilt(
    planned: Planned,
    control: Locked,
    known: tuple[Inventory, tuple[PackageChange, ...]],
    security: Security,
    options: NightlyOptions,
) -> SecurityUpdate:
    before, found = known
    options.tell(planned.name, f"rebuild: {len(found)} Debian packages have a security update")
    trial, rebuilt = security.rebuild(control.image, before, found)
    changed = [_change(one) for one in (rebuilt.changes if rebuilt else ())]
    line = jobs.judged(planned, control, Job.REBUILD, changed, trial, options)
    left = len(rebuilt.left) if rebuilt else 0
    log = updates.log(before, found, rebuilt, _next(planned.name, line, left))
    return SecurityUpdate(line=line, log=log, left=left)


def _change(one: PackageChange) -> Change:
    return Change(name=one.name, before=one.before, after=one.after, pinned=False)


def _next(name: str, line: JobLine, left: int) -> list[str]:
    if left:
        return [f"renew the base, which brings {left} of them (`nox -s pin`), and rebuild `{name}` once more"]
    if line.outcome is Outcome.PASS:
        return [f"`nox -s updates -- {name} --rebuild` builds it again and ends with the command that publishes it"]
    return [f"the rebuild is {line.outcome}: {line.cause or 'see the failing claims in the line of this run'}"]
