"""The site's index from the plan and everything that was validated, and every file of the site: path -> bytes.

Pure, but for reading templates; the same inputs give the same bytes.
"""

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import groupby
from typing import Any

from markupsafe import Markup

from images.config import paths, selectors
from images.config.matrix import Sources
from images.config.names import ImageName, Minor
from images.context.templates import environment
from images.errors import command
from images.host.hashing import sha256_of_file
from images.nightly.results import BreakageLine, Job, JobLine
from images.planning import chooser, plan
from images.planning.image import Image
from images.planning.plan import Planned
from images.site import index, records
from images.site.index import STALE_AFTER_DAYS, ImageRow, Index, RefusedRow, TierRun, Validation, deciding
from images.site.runs import Published, Run, newest_first
from images.validation.rows import ClaimVerdictRow
from validate import hints
from validate.claims import Claim, Tier
from validate.judging import Status, listed

TEMPLATES = paths.TEMPLATES / "site"
_KEPT_RUNS = 10
"""Of an image, a tier and GPU. results/ has all of them; pages stay small."""
_ON_GPUS = (Tier.GPU, Tier.MULTIGPU)
OWN_FOLDERS = ("assets", "badges", "images", "runs", "proofs")
"""Folders of the site that hold nothing else; `proofs` is what earlier versions wrote."""
_ASSETS = ("site.css", "theme.js", "site.js", "chooser.js", "errors.js", "icon.svg")
_SHOWN_LINES = 100
_SHOWN_BREAKAGES = 3
_SHOWN_CLAIMS = 8
_SHOWN_STEPS = 60
_ROOM_FOR_EVIDENCE = 180_000
"""Bytes of evidence in one page; the JSON beside it has all."""
_FILLS = {"brightgreen": "#1a7f37", "yellow": "#8a6100", "red": "#b42318", "lightgrey": "#5f6872"}
"""shields.io's names of colours, each with one that white text can be read on."""


@dataclass(frozen=True, kw_only=True)
class SiteInputs:
    """Everything a site is made from, read beforehand."""

    sources: Sources
    today: date
    runs: Sequence[Run] = ()
    nightly: Sequence[JobLine | BreakageLine] = ()
    repository: str = ""
    published: Sequence[Published] = ()
    closures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Lock -> distribution -> version."""
    blocked: Mapping[str, str] = field(default_factory=dict)
    """Lock -> why no image of it can be built, with the next command; the others can."""
    claims: Mapping[str, Sequence[Claim]] = field(default_factory=dict)
    """Image -> what the matrix claims of it today; one that is not here is shown by its runs alone."""


def make(known: SiteInputs) -> Index:
    """The index of these inputs."""
    everything = planned(known)
    accepted = [one for one in everything if one.image]
    return Index(
        date=known.today,
        revision=known.sources.revision,
        stale_after_days=STALE_AFTER_DAYS,
        gate=list(known.sources.matrix.gate),
        repository=known.repository,
        images=[_image(one.name, one.image, known) for one in accepted if one.image],
        refused=list(_refused(everything, accepted, known.sources)),
    )


def planned(known: SiteInputs) -> tuple[Planned, ...]:
    """The plan, and images outside it that were validated (an arch image, say); newest torch first."""
    listed = plan.plan(known.sources)
    names = {one.name for one in listed}
    others = sorted({run.image for run in known.runs} - names)
    found = [plan.plan_one(name, known.sources) for text in others if (name := selectors.image_name(text))]
    return tuple(sorted((*listed, *found), key=lambda one: one.image_name.torch, reverse=True))


def _image(name: str, image: Image, known: SiteInputs) -> ImageRow:
    tag = next((one for one in known.published if one.image == name), None)
    runs = newest_first(one for one in known.runs if one.image == name)
    digest = tag.digest if tag else next((one.digest for one in runs if one.digest), "")
    tier_runs = [row for run in runs for row in _tier_runs(run, digest, known.claims.get(name, ()))]
    validation, validated_on = _validation(tier_runs, known.sources.matrix.gate)
    blocked = "" if tag else known.blocked.get(image.lock_name, "")
    build = command("build", name)
    build = f"{command('lock', image.lock_name)} && {build}" if blocked else build
    on_gpus = {row.gpus: row.verdict for row in reversed(tier_runs) if row.tier is Tier.GPU and row.current}
    pins = {pin.name: pin.version for pin in image.pins}
    own = next((one.packages for one in runs if one.digest == digest and one.packages), {})
    drift = "" if tag else records.drift(own, pins)
    passed_on = [gpu for gpu, verdict in on_gpus.items() if verdict is Status.PASS and not drift]
    summary = chooser.summary(image, known.sources.facts, blocked, passed_on)
    aliases = [alias for alias, meant in known.sources.matrix.aliases.items() if meant == name]
    return ImageRow(
        **summary.model_dump(),
        tags=[*(tag.tags if tag else (name,)), *aliases],
        pins=pins,
        warnings=list(image.warnings),
        drift=drift,
        digest=digest,
        bytes=next((run.size for run in sorted(runs, key=lambda run: run.digest != digest) if run.size), 0),
        published=tag.reference if tag else "",
        transfer=tag.bytes if tag else 0,
        get=f"docker pull {known.repository}:{name}" if tag else build,
        validation=validation,
        validated_on=validated_on,
        runs=_kept(tier_runs),
        page=f"images/{name}.html",
        badge=f"badges/{name}.svg",
    )


def _tier_runs(run: Run, digest: str, claims: Sequence[Claim]) -> Iterator[TierRun]:
    """The tiers of a run. A GPU tier without a GPU is no run of it."""
    for tier, count in run.tiers.items():
        if tier in _ON_GPUS and not run.gpus:
            continue
        required = sum(claim.tier is tier and claim.required for claim in claims)
        by_number = max(0, required - sum(count.counts.values()))  # of nightly runs, which record no names
        yield TierRun(
            tier=tier,
            gpus=gpus_of(tier, run.gpus),
            verdict=count.verdict,
            counts=count.counts,
            never_run=len(unjudged((run,), tier, claims)) if run.claims else by_number,
            date=run.date,
            digest=run.digest,
            current=bool(digest) and run.digest == digest,
            source=run.source,
            page=page_of(run) if run.claims else "",
        )


def unjudged(runs: Sequence[Run], tier: Tier, claims: Sequence[Claim]) -> list[str]:
    """`ID SUBJECT` of the required claims of a tier that none of these runs judged."""
    judged = {one.key for run in runs for one in run.claims}
    return [one.key for one in claims if one.tier is tier and one.required and one.key not in judged]


def page_of(run: Run) -> str:
    """Path of the page of one run: its name, then where it was found."""
    where = run.source.rpartition("/")[2].replace("@", "-").replace(":", "-").replace(" ", "-")
    plain = "".join(char for char in where if char.isalnum() or char in "-_.")
    return f"runs/{run.image}/{plain}.html"


def gpus_of(tier: Tier, names: Sequence[str]) -> str:
    """`H100` for one GPU's tier, `2 x H200` for several GPUs' together; empty for tiers without."""
    if tier not in _ON_GPUS:
        return ""
    models = [chooser.model_of(name) for name in names]
    distinct = sorted(set(models))
    if tier is Tier.GPU:
        return ", ".join(distinct)
    return ", ".join(f"{models.count(model)} x {model}" for model in distinct)


def _validation(tier_runs: Sequence[TierRun], gate: Sequence[Tier]) -> tuple[Validation, date | None]:
    """And of a validated image the day of its oldest tier of the gate, where each has one."""
    current = deciding(tier_runs)
    if any(one.verdict is Status.FAIL for one in current):
        return Validation.FAILED, None
    passed = {one.tier for one in current if one.standing is Status.PASS}
    if gate and passed >= set(gate):
        days = [max((one.date for one in current if one.tier is tier and one.date), default=None) for tier in gate]
        known = [day for day in days if day]
        return Validation.VALIDATED, min(known) if len(known) == len(days) else None
    return Validation.PARTLY if any(one.verdict is Status.PASS for one in current) else Validation.NEVER, None


def _kept(tier_runs: Sequence[TierRun]) -> list[TierRun]:
    found = deciding(tier_runs)
    seen: Counter[tuple[Tier, str]] = Counter()
    for one in tier_runs:
        seen[one.tier, one.gpus] += 1
        if seen[one.tier, one.gpus] <= _KEPT_RUNS and one not in found:
            found.append(one)
    return [one for one in tier_runs if one in found]


def _refused(everything: Sequence[Planned], accepted: Sequence[Planned], sources: Sources) -> Iterator[RefusedRow]:
    """What the matrix lists and the plan refuses, then every other CUDA with every other torch."""
    listed = {row.name for row in sources.matrix.images}
    refused = {one.name: one for one in (*everything, *combinations(sources)) if not one.image}
    for name, one in refused.items():
        yield RefusedRow(
            name=name,
            torch=one.torch,
            reasons=list(one.reasons),
            listed=name in listed,
            nearest=list(plan.nearest(one.image_name, accepted)),
        )


def combinations(sources: Sources) -> tuple[Planned, ...]:
    """Every CUDA toolkit of the matrix with every torch of the facts, planned."""
    cudas = sorted(map(Minor.parse, sources.matrix.toolkits))
    torches = sorted({Minor.parse(text) for text in sources.facts.torch}, reverse=True)
    return tuple(plan.plan_one(ImageName(cuda=cuda, torch=torch), sources) for torch in torches for cuda in cudas)


def files(known: SiteInputs) -> dict[str, bytes]:
    """The whole site."""
    site = _Site(known, make(known))
    return {
        "index.json": index.dumps(site.index),
        "index.schema.json": index.schema(),
        **{f"assets/{name}": (TEMPLATES / name).read_bytes() for name in _ASSETS},
        **dict(site.pages()),
    }


_UNSEEN = dict.fromkeys(
    [*range(9), 11, 12, *range(14, 32), 127, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd"
)
"""Control characters, and those that turn the direction of what follows: a log may hold any."""


def _visible(value: Any) -> Any:
    return value.translate(_UNSEEN) if isinstance(value, str) else value


class _Site:
    """What pages share while they are made."""

    def __init__(self, known: SiteInputs, content: Index) -> None:
        self.known = known
        self.index = content
        self.hashes = {name: sha256_of_file(TEMPLATES / name)[:8] for name in _ASSETS}
        self.jinja = environment(TEMPLATES, html=True, finalize=_visible)
        self.planned = {one.name: one.image for one in planned(known) if one.image}

    def pages(self) -> Iterator[tuple[str, bytes]]:
        yield "index.html", self._matrix()
        yield "choose.html", self._chooser()
        yield "combinations.html", self._combinations()
        yield "nightly.html", self._nightly()
        rows = [row for row in hints.known() if not row.only_named]  # thousands of names would be most of the site
        yield "errors.html", self._page("errors.html.j2", "errors.html", rows=rows)
        badge_svg = self.jinja.get_template("badge.svg.j2")
        for image in self.index.images:
            message, colour = badge_of(image, self.index)
            badge = {"label": image.name, "message": message}
            yield image.page, self._image(image, f"{image.name}: {message}")
            widths = {"left": _width(image.name), "right": _width(message)}
            yield image.badge, badge_svg.render(fill=_FILLS[colour], **badge, **widths).encode()
            endpoint = json.dumps({"schemaVersion": 1, **badge, "color": colour})
            yield f"badges/{image.name}.json", f"{endpoint}\n".encode()
        for run in self.known.runs:
            if run.claims:
                yield page_of(run), self._run(run)
                yield from _raw(run).items()

    def _page(self, template: str, here: str, **context: Any) -> bytes:
        root = "../" * here.count("/")
        page = self.jinja.get_template(template)
        return page.render(
            index=self.index,
            root=root,
            here=here,
            asset=lambda name: f"{root}assets/{name}?{self.hashes[name]}",
            **context,
        ).encode()

    def _matrix(self) -> bytes:
        images, oldest = self.index.images, self.index.date - timedelta(days=self.index.stale_after_days)
        locked, unlocked = ([one for one in images if bool(one.blocked) is late] for late in (False, True))
        found = (line for line in reversed(self.known.nightly) if isinstance(line, BreakageLine) and not line.ranges)
        # Newest first, each once, of regular nightly runs that are not stale.
        breakages = list({line.key: line for line in found if line.date.date() >= oldest}.values())
        speeds: dict[tuple[str, str], list[tuple[str, float]]] = {}  # step and GPU -> milliseconds of newest runs
        for image in images:
            for key, points in _steps(self.known.runs, image.name).items():
                speeds.setdefault(key, []).append((image.name, points[-1][1]))
        return self._page(
            "index.html.j2",
            "index.html",
            gpus=_models(),
            totals=_totals(self.index),
            groups=[*([*group] for _, group in groupby(locked, lambda one: Minor.parse(one.torch))), unlocked],
            aliases=set(self.known.sources.matrix.aliases),
            gpu_columns=self.index.columns(Tier.GPU),
            multi_columns=self.index.columns(Tier.MULTIGPU),
            breakages=breakages[:_SHOWN_BREAKAGES],
            speeds=[(*key, each) for key, each in sorted(speeds.items()) if len(each) > 1],
        )

    def _chooser(self) -> bytes:
        images = self.index.images
        return self._page(
            "choose.html.j2",
            "choose.html",
            gpus=_models(),
            profiles=sorted({image.profile for image in images if image.profile}),
            torches=sorted({str(Minor.parse(image.torch)) for image in images}, key=Minor.parse, reverse=True),
            pythons=sorted({image.python for image in images if not image.default_python}, key=Minor.parse),
            minimum_drivers=[
                (major, minimum.driver) for major, minimum in self.known.sources.facts.minimum_drivers.items()
            ],
            # JSON inside a script element: no `<` can end it, and nothing of HTML is left in it.
            data=Markup(json.dumps(chooser_data(self.index), separators=(",", ":")).replace("<", "\\u003c")),
        )

    def _combinations(self) -> bytes:
        planned = combinations(self.known.sources)
        grid = [(f"{torch}", list(row)) for torch, row in groupby(planned, key=lambda one: one.image_name.torch)]
        by_heading = (
            ("Rows of matrix.yaml that are refused", [one for one in self.index.refused if one.listed]),
            ("Other combinations", [one for one in self.index.refused if not one.listed]),
        )
        return self._page(
            "combinations.html.j2",
            "combinations.html",
            cudas=sorted({one.image_name.cuda for one in planned}),
            grid=grid,
            built={image.name: image for image in self.index.images},
            refused=by_heading,
        )

    def _nightly(self) -> bytes:
        lines = list(reversed(self.known.nightly))
        return self._page(
            "nightly.html.j2",
            "nightly.html",
            jobs=[line for line in lines if isinstance(line, JobLine)][:_SHOWN_LINES],
            breakages=[line for line in lines if isinstance(line, BreakageLine)][:_SHOWN_LINES],
            pages={image.name: image.page for image in self.index.images},
        )

    def _image(self, row: ImageRow, badge: str) -> bytes:
        image, what = self.planned[row.name], f"torch {row.torch} with CUDA {row.toolkit_cuda}"
        runs = newest_first(run for run in self.known.runs if (run.image, run.digest) == (row.name, row.digest))
        measured = next((run.packages for run in runs if run.packages), {})
        nightly = [line for line in reversed(self.known.nightly) if line.image == row.name and not line.ranges]
        jobs = sorted((one for one in nightly if isinstance(one, JobLine)), key=lambda one: one.date)
        newest = {one.job: one for one in jobs}
        return self._page(
            "image.html.j2",
            row.page,
            image=row,
            sentence=f"{what}, for {row.profile}. {row.sentence}" if row.profile else f"{what}. {row.sentence}",
            base=image.base.reference,
            gaps=list(_gaps(row, self.index, runs, self.known.claims.get(row.name, ()))),
            open_claims=_open_claims(runs),
            steps=_steps(self.known.runs, row.name),
            pins=image.pins,
            measured=measured,
            closure=sorted(self.known.closures.get(image.lock_name, {}).items()),
            jobs=[newest[job] for job in (Job.CONTROL, Job.CANARY) if job in newest],
            breakages=[one for one in nightly if isinstance(one, BreakageLine)][:_SHOWN_BREAKAGES],
            badge_text=badge,
        )

    def _run(self, run: Run) -> bytes:
        most = _ROOM_FOR_EVIDENCE // max(len(run.claims), 1)
        tiers = [(tier, count, [one for one in run.claims if one.tier is tier]) for tier, count in run.tiers.items()]
        return self._page(
            "run.html.j2",
            page_of(run),
            run=run,
            has_page=run.image in self.planned,
            files=[(path.rpartition("/")[2], path) for path in _raw(run)],
            tiers=tiers,
            has_evidence=bool(run.evidence),
            shown=lambda one: _evidence(run.evidence.get((one.id, one.subject), {}), most),
        )


def chooser_data(index: Index) -> dict[str, Any]:
    """What chooser.js looks answers up in, and what it shows and asks of images."""
    keys = ("name", "profile", "torch", "python", "default_python", "devel", "page", "get", "validation", "sentence")
    images = []
    for image in index.images:
        ran = any(one.tier is Tier.GPU and one.current and one.verdict is Status.PASS for one in image.runs)
        images.append({**{key: getattr(image, key) for key in keys}, "ran": ran, "on": image.passed_on})
    return {**chooser.table(index.images), "images": images}


def _models() -> list[str]:
    return [name for name, row in chooser.models().items() if not row.arm]


def _totals(index: Index) -> list[tuple[str, int, str]]:
    """(key, count, words). Keys are for the browser, which counts again what grows stale."""
    counts = Counter(image.validation for image in index.images)
    oldest = index.date - timedelta(days=index.stale_after_days)
    fresh = sum(image.validated_on is not None and image.validated_on >= oldest for image in index.images)
    return [
        ("images", len(index.images), "images:"),
        ("validated", fresh, f"validated ({', '.join(index.gate)})"),
        ("stale", counts[Validation.VALIDATED] - fresh, "validated, but stale"),
        ("partly", counts[Validation.PARTLY], "partly validated"),
        ("failed", counts[Validation.FAILED], "failed"),
        ("never", counts[Validation.NEVER], "not validated"),
        ("unlocked", sum(bool(image.blocked) for image in index.images), "of all without a lock: can't be built here"),
        ("refused", sum(one.listed for one in index.refused), "further rows of matrix.yaml refused"),
    ]


def _steps(runs: Sequence[Run], image: str) -> dict[tuple[str, str], list[tuple[date, float, float]]]:
    """Step (G14) and GPU model -> day, milliseconds and peak in GB of an image's last runs, oldest first."""
    found: dict[tuple[str, str], list[tuple[date, float, float]]] = {}
    for run in reversed(newest_first(one for one in runs if one.image == image and len(set(one.gpus)) == 1)):
        for subject, step in run.steps.items():
            if run.date:
                point = (run.date, round(step.seconds * 1e3, 1), round(step.peak / 1e9, 2))
                found.setdefault((subject, chooser.model_of(run.gpus[0])), []).append(point)
    return {key: points[-_SHOWN_STEPS:] for key, points in sorted(found.items())}


def _gaps(row: ImageRow, index: Index, runs: Sequence[Run], claims: Sequence[Claim]) -> Iterator[str]:
    """Tiers and digests that were not validated, and claims that are newer than every run of this digest."""
    judged = {one.tier for one in row.runs if one.current}
    missing = [str(tier) for tier in index.gate if tier not in judged]
    if row.runs and missing:
        yield f"Not validated for this digest: {', '.join(missing)}."
    if row.published and row.runs and not judged:
        yield "No run is of the digest that the tag means today."
    for tier in dict.fromkeys(one.tier for one in row.runs if one.current and one.never_run):
        if names := unjudged(runs, tier, claims):
            yield f"Claims of the {tier} tier that were never run: {listed(names, limit=_SHOWN_CLAIMS)}."


def _open_claims(runs: Sequence[Run]) -> list[ClaimVerdictRow]:
    """Claims that are not PASS in the newest run that judged them. Runs come newest first."""
    found: dict[tuple[str, str, Tier], ClaimVerdictRow] = {}
    for run in runs:
        for one in run.claims:
            found.setdefault((one.id, one.subject, one.tier), one)
    return [one for one in found.values() if one.verdict not in (Status.PASS, Status.NOT_APPLICABLE)]


def badge_of(image: ImageRow, index: Index) -> tuple[str, str]:
    """What a badge says, and its colour as shields.io calls it (https://shields.io/badges/endpoint-badge).

    Green only for an image that is validated and not stale on the day the site was made. A picture can't grow old by
    itself: it has the date of its oldest run.
    """
    current, day = [one for one in image.runs if one.current], image.validated_on
    match image.validation:
        case Validation.VALIDATED:
            if day is None:
                return "validated, undated", "lightgrey"
            fresh = day >= index.date - timedelta(days=index.stale_after_days)
            return (f"validated {day}", "brightgreen") if fresh else (f"stale: validated {day}", "lightgrey")
        case Validation.FAILED:
            failed = next(one for one in current if one.verdict is Status.FAIL)
            return f"{failed.tier} fails {failed.date or ''}".strip(), "red"
        case Validation.PARTLY:
            passed = [one for one in current if one.verdict is Status.PASS]
            tiers = ", ".join(dict.fromkeys(str(one.tier) for one in passed))
            days = [one.date for one in passed if one.date]
            return f"{tiers} only {min(days) if len(days) == len(passed) else 'undated'}", "yellow"
    return "not validated", "lightgrey"


def _width(text: str) -> int:
    """In pixels, of a text in Verdana at 11 px, rounded up, with its margins."""
    return round(sum(8.0 if char in "mwMW—" else 4.0 if char in "il.,:-1 " else 6.6 for char in text)) + 12


def _raw(run: Run) -> dict[str, bytes]:
    folder = page_of(run).removesuffix(".html")
    return {f"{folder}/{name}": content for name, content in run.files.items()}


def _evidence(evidence: Mapping[str, Any], most: int) -> Markup:
    """As text of a page: a quote is no danger there, and evidence is full of them."""
    text = json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
    escaped = html.escape(str(_visible(text)), quote=False).encode()
    if len(escaped) <= most:
        return Markup(escaped.decode())
    kept = escaped[:most].rpartition(b"\n")[0]
    return Markup(f"{kept.decode()}\n... {len(escaped) - len(kept)} more bytes in evidence.json")
