"""Render every file of the site: index.json, the pages, and their style sheet.

No page has a script. The same inputs give the same bytes. The only files that are read here are
those of templates/site/.
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
from images.site.index import ImageRow
from images.site.inputs import SiteInputs, make_index, plan_images
from images.site.runs import Run, newest_first
from images.site.status import Validation, unjudged_claims
from images.validation.rows import ClaimRow
from validate.claims import Claim, Tier
from validate.judging import Status, listed

TEMPLATES = paths.TEMPLATES / "site"
OWN_FOLDERS = ("assets", "images")
"""Folders of the site that hold only files of the site: what is outdated in them may be deleted."""
_ASSETS = ("site.css", "icon.svg")
_SHOWN_BREAKAGES = 3
_DAYS_OF_BREAKAGES = 14
"""Breakages that nightly runs reported earlier are not on the first page."""
_SHOWN_CLAIMS = 8


def render_files(inputs: SiteInputs) -> dict[str, bytes]:
    """Return every file of the site: path in the site -> content."""
    site = _Site(inputs)
    contents = {"index.json": index.dumps(site.index), "index.schema.json": index.schema()}
    for name in _ASSETS:
        contents[f"assets/{name}"] = (TEMPLATES / name).read_bytes()
    contents["index.html"] = site.matrix_page()
    contents["choose.html"] = site.choose_page()
    for image in site.index.images:
        contents[image.page] = site.image_page(image)
    return contents


class _Site:
    """The pages of one site, and what they share: inputs, index, templates and planned images."""

    def __init__(self, inputs: SiteInputs) -> None:
        self.inputs = inputs
        self.index = make_index(inputs)
        self.jinja = environment(TEMPLATES, html=True)
        self.images = {
            planned.name: planned.image for planned in plan_images(inputs) if planned.image
        }

    def _render(self, template: str, path: str, **variables: Any) -> bytes:
        """Return a page as HTML, made of a template in templates/site/.

        `path`: of the page in the site. `variables`: what the template shows, besides what all
        pages share. Links in a page are relative, so the site works in any folder of a server.
        """
        path_to_root = "../" * path.count("/")
        page = self.jinja.get_template(template).render(
            index=self.index,
            root=path_to_root,
            here=path,
            **variables,
        )
        return page.encode()

    def matrix_page(self) -> bytes:
        """Return the site's first page as HTML: a table of all images, and the latest breakages.

        The rows are grouped by the minor version of torch.
        """
        # Images without a lock come last: nobody can have them.
        locked = [image for image in self.index.images if not image.blocked]
        unlocked = [image for image in self.index.images if image.blocked]
        # The images of index.json are sorted by torch already, as `groupby` needs them.
        groups = []
        for _minor, images in groupby(locked, lambda image: Minor.parse(image.torch)):
            groups.append(list(images))
        groups.append(unlocked)
        return self._render(
            "index.html.j2",
            "index.html",
            totals=self._totals(),
            groups=groups,
            aliases=set(self.inputs.sources.matrix.aliases),
            gpu_columns=self.index.columns(Tier.GPU),
            multi_columns=self.index.columns(Tier.MULTIGPU),
            breakages=self._fresh_breakages()[:_SHOWN_BREAKAGES],
        )

    def _totals(self) -> list[tuple[int, str]]:
        """Return how many images are validated, stale, failed and so on, as (number, words).

        They stand at the top of the page with the table of all images. The runs of an image are
        stale if its layers have moved since.
        """
        images = self.index.images
        counts = Counter(image.validation for image in images)
        blocked = sum(bool(image.blocked) for image in images)
        return [
            (len(images), "images:"),
            (counts[Validation.VALIDATED], f"validated ({', '.join(self.index.gate)})"),
            (counts[Validation.PARTLY], "partly validated"),
            (counts[Validation.STALE], "stale: their layers have moved"),
            (counts[Validation.FAILED], "failed"),
            (counts[Validation.NEVER], "not validated"),
            (blocked, "of all without a lock: can't be built here"),
            (len(self.index.refused), "further rows of matrix.yaml refused"),
        ]

    def _fresh_breakages(self) -> list[BreakageLine]:
        """Return the breakages that nightly runs reported in the last days, newest first.

        A breakage is a set of new package versions that makes an image fail. One that was reported
        several times is returned once, as it was reported last.
        """
        oldest_day = self.index.date - timedelta(days=_DAYS_OF_BREAKAGES)
        breakages: dict[str, BreakageLine] = {}
        for line in reversed(self.inputs.nightly):
            if isinstance(line, BreakageLine) and line.date.date() >= oldest_day:
                breakages.setdefault(line.key, line)
        return list(breakages.values())

    def choose_page(self) -> bytes:
        """Return the HTML page with the image to choose for each GPU model, driver and profile.

        A profile is the training framework in an image, such as axolotl. The page also has the
        oldest driver for each major version of CUDA.
        """
        names = {image.profile for image in self.index.images if image.profile}
        # A column of the tables for each profile. The first one is for images without a profile.
        profiles = [None, *sorted(names)]
        return self._render(
            "choose.html.j2",
            "choose.html",
            profiles=profiles,
            tables=choosing.gpu_tables(self.index.images, profiles),
            minimum_drivers=self.inputs.sources.facts.minimum_drivers,
        )

    def image_page(self, row: ImageRow) -> bytes:
        """Return the HTML page of an image: what it holds, what was validated, and what is open.

        `row` is what index.json says of the image.
        """
        image = self.images[row.name]
        claims = self.inputs.claims.get(row.name, ())

        # Recorded validation runs of the image as it is now, not of an older build.
        current = (row.name, row.digest)
        runs = newest_first(run for run in self.inputs.runs if (run.image, run.digest) == current)

        # The packages as the newest run found them installed, and as the lock has them.
        runs_with_packages = [run for run in runs if run.packages]
        measured_packages = runs_with_packages[0].packages if runs_with_packages else {}
        locked_packages = self.inputs.closures.get(image.lock_name, {})
        jobs, breakages = self._nightly_lines(row.name)
        profile = f", for {row.profile}" if row.profile else ""
        return self._render(
            "image.html.j2",
            row.page,
            image=row,
            sentence=f"torch {row.torch} with CUDA {row.toolkit_cuda}{profile}. {row.status}",
            base=image.base.reference,
            gaps=list(_gaps(row, self.index.gate, runs, claims)),
            open_claims=_open_claims(runs),
            pins=image.pins,
            measured=measured_packages,
            closure=sorted(locked_packages.items()),
            jobs=jobs,
            breakages=breakages[:_SHOWN_BREAKAGES],
        )

    def _nightly_lines(self, name: str) -> tuple[list[JobLine], list[BreakageLine]]:
        """Return what nightly runs recorded of an image: its jobs, then its breakages.

        The jobs are the newest build with the locked versions (control) and the newest one with the
        latest versions (canary), as far as there are any. A breakage names the new versions that
        made an image fail; the newest comes first.
        """
        # The lines come oldest first. `setdefault` keeps the first that it gets: the newest.
        newest_jobs: dict[Job, JobLine] = {}
        breakages: list[BreakageLine] = []
        for line in reversed(self.inputs.nightly):
            if line.image != name:
                continue
            if isinstance(line, JobLine):
                newest_jobs.setdefault(line.job, line)
            else:
                breakages.append(line)
        jobs = [newest_jobs[job] for job in (Job.CONTROL, Job.CANARY) if job in newest_jobs]
        return jobs, breakages


def _gaps(
    row: ImageRow, gate: Sequence[Tier], runs: Sequence[Run], claims: Sequence[Claim]
) -> Iterator[str]:
    """Yield a sentence for each thing that no run of an image's current digest validated.

    `row` is what index.json says of the image. `gate` has the tiers (groups of claims) that must
    pass. `runs` are the whole records of the current digest's runs, and `row.runs` summaries of the
    runs of every digest. `claims` is what the matrix claims of the image today.
    An image without any run has no gaps: its page says that it was never validated.
    """
    # Tiers of the gate that no run of this digest measured.
    current_runs = [run for run in row.runs if run.current]
    judged_tiers = {run.tier for run in current_runs}
    missing_tiers = [str(tier) for tier in gate if tier not in judged_tiers]
    if row.runs and missing_tiers:
        yield f"Not validated for this digest: {', '.join(missing_tiers)}."

    # A tag that moved after the last run.
    if row.published and row.runs and not judged_tiers:
        yield "No run is of the digest that the tag means today."

    # Claims that are newer than the runs. A dict keeps the order of the runs, and has each tier
    # once.
    incomplete_tiers = dict.fromkeys(run.tier for run in current_runs if run.newer)
    for tier in incomplete_tiers:
        # Another run of this digest may have judged what one of them lacks.
        keys = unjudged_claims(runs, tier, claims)
        if keys:
            names = listed(keys, limit=_SHOWN_CLAIMS)
            yield f"Claims of the {tier} tier that are newer than its runs: {names}."


def _open_claims(runs: Sequence[Run]) -> list[ClaimRow]:
    """Return an image's claims that did not pass, each as the newest run that has it judged it.

    A claim is one check of the image. Claims that do not apply to the image are left out. `runs`
    are those of the image, newest first.
    """
    # Check, subject and tier, which tell claims apart -> the claim in the newest run.
    newest: dict[tuple[str, str, Tier], ClaimRow] = {}
    for run in runs:
        for claim in run.claims:
            newest.setdefault((claim.check, claim.subject, claim.tier), claim)
    settled = (Status.PASS, Status.NOT_APPLICABLE)
    return [claim for claim in newest.values() if claim.verdict not in settled]
