"""Every file of the site: path -> bytes. Pure, but for reading templates; the same inputs give the same bytes."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from markupsafe import Markup

from images.chooser import choose, models
from images.config import paths
from images.config.names import Arch, Minor
from images.context.templates import environment
from images.host.hashing import sha256_of_file
from images.nightly.results import BreakageLine, JobLine
from images.planning.image import Image
from images.site import badges
from images.site import index as indexes
from images.site.index import ImageRow, Index, Known, Standing
from images.site.runs import Run, newest_first
from images.validation.schemas import ClaimVerdictRow
from validate.claims import Tier
from validate.compute_capability import runs_on
from validate.judging import Status

TEMPLATES = paths.TEMPLATES / "site"
OWN_FOLDERS = ("assets", "badges", "images", "proofs")
"""Below the site's folder, nothing else lies in these."""
_ASSETS = ("site.css", "theme.js", "site.js", "choose.js", "chooser.js", "icon.svg")
_SHOWN_NIGHTS = 100
_SHOWN_BREAKAGES = 3
_ROOM_FOR_EVIDENCE = 180_000
"""Bytes of evidence in one page; the JSON beside it has all."""
_BAR = 64


def files(known: Known) -> dict[str, bytes]:
    """The whole site."""
    site = _Site(known, indexes.make(known))
    return {
        "index.json": indexes.dumps(site.index),
        "index.schema.json": indexes.generated()["docs/schema/index.schema.json"],
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

    def __init__(self, known: Known, index: Index) -> None:
        self.known = known
        self.index = index
        self.hashes = {name: sha256_of_file(TEMPLATES / name)[:8] for name in _ASSETS}
        self.jinja = environment(TEMPLATES, html=True, finalize=_visible)
        self.planned = {one.name: one.image for one in indexes.planned(known) if one.image}

    def pages(self) -> Iterator[tuple[str, bytes]]:
        yield "index.html", self._matrix()
        yield "choose.html", self._chooser()
        yield "combinations.html", self._combinations()
        yield "nights.html", self._nights()
        for image in self.index.images:
            badge = badges.of(image, self.index)
            yield image.page, self._image(image, badge)
            yield image.badge, self._fragment("badge.svg.j2", **_view(badge)).encode()
            yield f"badges/{image.name}.json", badge.as_json()
        for run in self.known.runs:
            if run.claims:
                yield indexes.page_of(run), self._proof(run)
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

    def _fragment(self, template: str, **context: Any) -> str:
        return self.jinja.get_template(template).render(**context)

    def _matrix(self) -> bytes:
        images = self.index.images
        return self._page(
            "index.html.j2",
            "index.html",
            gpus=_models(),
            totals=_totals(self.index),
            groups=[list(group) for _, group in groupby(images, key=lambda image: Minor.parse(image.torch))],
            aliases=set(self.known.sources.matrix.aliases),
            gpu_columns=self.index.columns(Tier.GPU),
            multi_columns=self.index.columns(Tier.MULTIGPU),
            breakages=self._breakages()[:_SHOWN_BREAKAGES],
        )

    def _breakages(self) -> list[BreakageLine]:
        """Newest first, each once, of plain nights that are not stale."""
        oldest = self.index.date - timedelta(days=self.index.stale_after_days)
        found = (line for line in reversed(self.known.nights) if isinstance(line, BreakageLine) and not line.ranges)
        return list({line.key: line for line in found if line.date.date() >= oldest}.values())

    def _chooser(self) -> bytes:
        images = self.index.images
        return self._page(
            "choose.html.j2",
            "choose.html",
            gpus=_models(),
            profiles=sorted({image.profile for image in images if image.profile}),
            pythons=sorted({image.python for image in images if not image.default_python}, key=Minor.parse),
            floors=[(major, floor.driver) for major, floor in self.known.sources.facts.driver_floors.items()],
            data=_json(chooser_data(self.index)),
        )

    def _combinations(self) -> bytes:
        pairs = indexes.pairs(self.known.sources)
        grid = [(f"{torch}", list(row)) for torch, row in groupby(pairs, key=lambda one: one.image_name.torch)]
        by_heading = (
            ("Rows of matrix.yaml that are refused", [one for one in self.index.refused if one.listed]),
            ("Other combinations", [one for one in self.index.refused if not one.listed]),
        )
        return self._page(
            "combinations.html.j2",
            "combinations.html",
            cudas=sorted({one.image_name.cuda for one in pairs}),
            grid=grid,
            built={image.name: image.page for image in self.index.images},
            refused=by_heading,
        )

    def _nights(self) -> bytes:
        lines = list(reversed(self.known.nights))
        return self._page(
            "nights.html.j2",
            "nights.html",
            nights=[line for line in lines if isinstance(line, JobLine)][:_SHOWN_NIGHTS],
            breakages=[line for line in lines if isinstance(line, BreakageLine)][:_SHOWN_NIGHTS],
            pages={image.name: image.page for image in self.index.images},
        )

    def _image(self, row: ImageRow, badge: badges.Badge) -> bytes:
        image = self.planned[row.name]
        runs = newest_first(run for run in self.known.runs if (run.image, run.digest) == (row.name, row.digest))
        measured = next((run.packages for run in runs if run.packages), {})
        control, canary, breakages = indexes.nights_of(self.known, row.name)
        return self._page(
            "image.html.j2",
            row.page,
            image=row,
            sentence=_sentence(row),
            base=image.base.reference,
            gaps=list(_gaps(row, self.index)),
            unwell=_unwell(runs),
            pins=image.pins,
            measured=measured,
            closure=sorted(self.known.closures.get(image.lock_name, {}).items()),
            runs_on=_runs_on(image),
            chart=Markup(self._fragment("chart.svg.j2", **_chart(row))),  # a template of ours
            drift=_drift(measured, image),
            control=control,
            canary=canary,
            breakages=breakages[:_SHOWN_BREAKAGES],
            badge_text=f"{badge.label}: {badge.message}",
        )

    def _proof(self, run: Run) -> bytes:
        texts = {id(one): _evidence(run.evidence.get((one.id, one.subject), {})) for one in run.claims}
        most = _share(list(map(len, texts.values())), _ROOM_FOR_EVIDENCE)
        tiers = [(tier, count, [one for one in run.claims if one.tier is tier]) for tier, count in run.tiers.items()]
        return self._page(
            "proof.html.j2",
            indexes.page_of(run),
            run=run,
            has_page=run.image in self.planned,
            files=[(path.rpartition("/")[2], path) for path in _raw(run)],
            tiers=tiers,
            has_evidence=bool(run.evidence),
            shown=lambda one: Markup(_shortened(texts[id(one)], most).decode(errors="replace")),  # escaped
        )


def chooser_data(index: Index) -> dict[str, Any]:
    """What the browser chooses from, by the rules of choose.js: rows of index.json, and how GPUs are called."""
    keys = (
        "name profile torch python default_python devel arch toolkit_cuda wheel_cuda archs "
        "min_driver native_driver page get standing"
    ).split()
    images = [
        {
            **{key: getattr(image, key) for key in keys},
            "told": image.told,
            "runs_on": choose.code_ranges([*map(Arch.parse, image.archs)], [*map(Arch.parse, image.ptx)]),
        }
        for image in index.images
    ]
    return {**models.vocabulary(), "images": images}


def _json(data: Any) -> Markup:
    """JSON inside a script element: no `<` can end it."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c"))  # nothing of HTML is left in it


def _models() -> list[str]:
    return [model["name"] for model in models.vocabulary()["models"] if not model["arm"]]


def _totals(index: Index) -> list[tuple[str, int, str]]:
    """(key, count, words). Keys are for the browser, which counts again what grows stale."""
    counts = Counter(image.standing for image in index.images)
    oldest = index.date - timedelta(days=index.stale_after_days)
    fresh = sum(image.proven_on is not None and image.proven_on >= oldest for image in index.images)
    return [
        ("images", len(index.images), "images"),
        ("proven", fresh, f"proven: {', '.join(index.gate)}"),
        ("stale", counts[Standing.PROVEN] - fresh, "proven, and stale"),
        ("partly", counts[Standing.PARTLY], "proven in part"),
        ("fails", counts[Standing.FAILS], "with a failed claim"),
        ("never", counts[Standing.NEVER], "never proven"),
        ("refused", sum(one.listed for one in index.refused), "rows refused"),
    ]


def _sentence(row: ImageRow) -> str:
    what = f"torch {row.torch} with CUDA {row.toolkit_cuda}"
    return f"{what}, for {row.profile}. {row.told}" if row.profile else f"{what}. {row.told}"


def _gaps(row: ImageRow, index: Index) -> Iterator[str]:
    """What a person may think was proven, and was not."""
    judged = {one.tier for one in row.proofs if one.current}
    missing = [str(tier) for tier in index.gate if tier not in judged]
    if row.proofs and missing:
        yield f"Of this digest, {' and '.join(missing)} {'was' if len(missing) == 1 else 'were'} never judged."
    if row.published and row.proofs and not judged:
        yield "No proof is of the digest that the tag means today."


def _unwell(runs: Sequence[Run]) -> list[ClaimVerdictRow]:
    """Claims that are not PASS in the newest of these runs that judged them; they come newest first."""
    found: dict[tuple[str, str, Tier], ClaimVerdictRow] = {}
    for run in runs:
        for one in run.claims:
            found.setdefault((one.id, one.subject, one.tier), one)
    return [one for one in found.values() if one.verdict not in (Status.PASS, Status.NOT_APPLICABLE)]


def _drift(measured: Mapping[str, str], image: Image) -> list[Any]:
    """Pins that are not what the newest proof measured, where they are in both."""
    then = {name: version.partition("+")[0] for name, version in measured.items()}
    pins = {pin.name: pin.version for pin in image.pins if pin.name in then}
    return indexes.changes({name: then[name] for name in pins}, pins)


def _runs_on(image: Image) -> list[tuple[str, list[str]]]:
    """GPU models whose machine code it has, newest architecture first."""
    found: dict[Arch, list[str]] = {}
    for model in models.vocabulary()["models"]:
        arch = Arch.parse(model["capability"])
        if not model["arm"] and any(runs_on(own.pair, arch.pair) for own in image.archs):
            found.setdefault(arch, []).append(model["name"])
    return [(str(arch), names) for arch, names in sorted(found.items(), reverse=True)]


def _chart(row: ImageRow) -> dict[str, Any]:
    """Bars from zero, so that heights compare as sizes do."""
    most = max((one.bytes for one in row.sizes), default=1)
    bars = [
        {
            "x": 14 + at * _BAR,
            "y": 120 - (height := round(95 * one.bytes / most)),
            "height": height,
            "value": f"{one.bytes / 1e9:.2f}",
            "label": f"{one.date:%m-%d}" if one.date else "undated",
        }
        for at, one in enumerate(row.sizes)
    ]
    return {"bars": bars, "width": len(bars) * _BAR}


def _view(badge: badges.Badge) -> dict[str, Any]:
    keys = ("label", "message", "fill", "left", "right")
    return {key: getattr(badge, key) for key in keys}


def _raw(run: Run) -> dict[str, bytes]:
    folder = indexes.page_of(run).removesuffix(".html")
    return {f"{folder}/{name}": content for name, content in run.files.items()}


def _evidence(evidence: Mapping[str, Any]) -> bytes:
    """As text of a page: a quote is no danger there, and evidence is full of them."""
    text = json.dumps(evidence, indent=1, ensure_ascii=False, default=str)
    return html.escape(str(_visible(text)), quote=False).encode()


def _share(sizes: Sequence[int], room: int) -> int:
    """The most that each may have, so that all together fit: what small ones leave, large ones get."""
    most = 0
    for at, size in enumerate(sorted(sizes)):
        most = room // (len(sizes) - at)
        if size > most:
            return most
        room -= size
    return max(sizes, default=most)


def _shortened(text: bytes, most: int) -> bytes:
    if len(text) <= most:
        return text
    kept = text[:most].rpartition(b"\n")[0]
    return kept + f"\n... {len(text) - len(kept)} more bytes in evidence.json".encode()
