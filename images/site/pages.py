"""Every file of the site: path -> bytes. No page has a script.

Pure, but for reading templates; the same inputs give the same bytes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from images.config import paths
from images.config.names import Minor
from images.context.templates import environment
from images.nightly.results import BreakageLine, Job, JobLine
from images.site import choosing, index
from images.site.index import ImageRow, Index, Validation
from images.site.inputs import SiteInputs, make_index, planned, unjudged
from images.site.runs import Run, newest_first
from images.validation.rows import ClaimRow
from validate.claims import Claim, Tier
from validate.judging import Status, listed

TEMPLATES = paths.TEMPLATES / "site"
OWN_FOLDERS = ("assets", "images")
"""Folders of the site that hold nothing else."""
_ASSETS = ("site.css", "icon.svg")
_SHOWN_BREAKAGES = 3
_SHOWN_CLAIMS = 8


def files(inputs: SiteInputs) -> dict[str, bytes]:
    """Return the whole site."""
    site = _Site(inputs)
    made = {"index.json": index.dumps(site.index), "index.schema.json": index.schema()}
    for name in _ASSETS:
        made[f"assets/{name}"] = (TEMPLATES / name).read_bytes()
    made["index.html"] = site.matrix_page()
    made["choose.html"] = site.choose_page()
    for image in site.index.images:
        made[image.page] = site.image_page(image)
    return made


class _Site:
    """What pages share while they are made."""

    def __init__(self, inputs: SiteInputs) -> None:
        self.inputs = inputs
        self.index = make_index(inputs)
        self.jinja = environment(TEMPLATES, html=True)
        self.planned = {row.name: row.image for row in planned(inputs) if row.image}
        self.oldest_fresh = self.index.date - timedelta(days=self.index.stale_after_days)

    def _page(self, template: str, path: str, **context: Any) -> bytes:
        root = "../" * path.count("/")
        page = self.jinja.get_template(template)
        return page.render(
            index=self.index,
            root=root,
            here=path,
            is_stale=lambda day: day is None or day < self.oldest_fresh,
            **context,
        ).encode()

    def matrix_page(self) -> bytes:
        # Images without a lock come last: nobody can have them.
        locked = [image for image in self.index.images if not image.blocked]
        unlocked = [image for image in self.index.images if image.blocked]
        groups = [
            list(group) for _, group in groupby(locked, lambda image: Minor.parse(image.torch))
        ]
        return self._page(
            "index.html.j2",
            "index.html",
            totals=self._totals(),
            groups=[*groups, unlocked],
            aliases=set(self.inputs.sources.matrix.aliases),
            gpu_columns=self.index.columns(Tier.GPU),
            multi_columns=self.index.columns(Tier.MULTIGPU),
            breakages=self._fresh_breakages()[:_SHOWN_BREAKAGES],
        )

    def _totals(self) -> list[tuple[int, str]]:
        """Return (number, words) of each figure at the top of the matrix page."""
        images = self.index.images
        counts = Counter(image.validation for image in images)
        days = [image.validated_on for image in images]
        fresh = sum(day is not None and day >= self.oldest_fresh for day in days)
        return [
            (len(images), "images:"),
            (fresh, f"validated ({', '.join(self.index.gate)})"),
            (counts[Validation.VALIDATED] - fresh, "validated, but stale"),
            (counts[Validation.PARTLY], "partly validated"),
            (counts[Validation.FAILED], "failed"),
            (counts[Validation.NEVER], "not validated"),
            (
                sum(bool(image.blocked) for image in images),
                "of all without a lock: can't be built here",
            ),
            (len(self.index.refused), "further rows of matrix.yaml refused"),
        ]

    def _fresh_breakages(self) -> list[BreakageLine]:
        """Return what nightly runs found to break lately, newest first, each once."""
        breakages: dict[str, BreakageLine] = {}
        for line in reversed(self.inputs.nightly):
            if isinstance(line, BreakageLine) and line.date.date() >= self.oldest_fresh:
                breakages.setdefault(line.key, line)
        return list(breakages.values())

    def choose_page(self) -> bytes:
        profiles = [None, *sorted({image.profile for image in self.index.images if image.profile})]
        return self._page(
            "choose.html.j2",
            "choose.html",
            profiles=profiles,
            tables=choosing.gpu_tables(self.index.images, profiles),
            minimum_drivers=[
                (major, minimum.driver)
                for major, minimum in self.inputs.sources.facts.minimum_drivers.items()
            ],
        )

    def image_page(self, row: ImageRow) -> bytes:
        image, inputs = self.planned[row.name], self.inputs
        stack = f"torch {row.torch} with CUDA {row.toolkit_cuda}"
        runs = newest_first(
            run for run in inputs.runs if (run.image, run.digest) == (row.name, row.digest)
        )

        newest_jobs: dict[Job, JobLine] = {}
        breakages: list[BreakageLine] = []
        for line in inputs.nightly:
            if line.image != row.name:
                continue
            if isinstance(line, JobLine):
                newest_jobs[line.job] = line
            else:
                breakages.insert(0, line)

        return self._page(
            "image.html.j2",
            row.page,
            image=row,
            sentence=f"{stack}, for {row.profile}. {row.sentence}"
            if row.profile
            else f"{stack}. {row.sentence}",
            base=image.base.reference,
            gaps=list(_gaps(row, self.index, runs, inputs.claims.get(row.name, ()))),
            open_claims=_open_claims(runs),
            pins=image.pins,
            measured=next((run.packages for run in runs if run.packages), {}),
            closure=sorted(inputs.closures.get(image.lock_name, {}).items()),
            jobs=[newest_jobs[job] for job in (Job.CONTROL, Job.CANARY) if job in newest_jobs],
            breakages=breakages[:_SHOWN_BREAKAGES],
        )


def _gaps(
    row: ImageRow, index: Index, runs: Sequence[Run], claims: Sequence[Claim]
) -> Iterator[str]:
    """Yield tiers and digests that were not validated, and claims that are newer than every run of this digest."""
    current = [run for run in row.runs if run.current]
    judged = {run.tier for run in current}
    missing = [str(tier) for tier in index.gate if tier not in judged]
    if row.runs and missing:
        yield f"Not validated for this digest: {', '.join(missing)}."
    if row.published and row.runs and not judged:
        yield "No run is of the digest that the tag means today."

    tiers = dict.fromkeys(run.tier for run in current if run.never_run)
    for tier in tiers:
        names = unjudged(runs, tier, claims)
        if names:
            yield f"Claims of the {tier} tier that were never run: {listed(names, limit=_SHOWN_CLAIMS)}."


def _open_claims(runs: Sequence[Run]) -> list[ClaimRow]:
    """Return the claims that are not PASS in the newest run that judged them. Runs come newest first."""
    newest: dict[tuple[str, str, Tier], ClaimRow] = {}
    for run in runs:
        for row in run.claims:
            newest.setdefault((row.check, row.subject, row.tier), row)
    return [
        row for row in newest.values() if row.verdict not in (Status.PASS, Status.NOT_APPLICABLE)
    ]
