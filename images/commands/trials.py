"""What verbs share that need an engine or an image's claims: open the one, write the others, and judge by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from images import apptainer
from images.building import trying
from images.building.trying import Telling, Tried, Wanted
from images.commands import common
from images.commands.common import say, talk
from images.commands.options import Tiers
from images.config import paths
from images.config.matrix import Sources
from images.context import base_images
from images.context import labels as image_labels
from images.engine import Engine, connect, private_engine
from images.engine import gpus as gpu_access
from images.engine.runtime import Runtime
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from images.validation.claims.image import image_claims
from validate.claims import ClaimSet, Tier
from validate.evidence import Evidence, Record

Gpus = Annotated[
    str, typer.Option("--gpus", metavar=gpu_access.HELP, help="How the trial's container gets the host's GPUs.")
]


@dataclass(frozen=True, kw_only=True)
class TrialArguments:
    """What a trial measures, and on which GPUs."""

    tier: Tiers = None
    gpus: Gpus = gpu_access.AUTO

    @property
    def tiers(self) -> Sequence[Tier]:
        """Empty: all that this machine can."""
        return self.tier or ()


def claims_of(image: Image, labels: Mapping[str, str], sources: Sources) -> ClaimSet:
    """The claims that today's matrix writes for an image with these labels."""
    return image_claims(trying.claim_context(image, lock_file.read(image), labels, sources, common.cache()))


def claims_of_published(labels: Mapping[str, str], sources: Sources) -> ClaimSet | None:
    """The same of a published image; None where the matrix makes another image of its name, or has no lock of it.

    An alias or a new row gives the whole matrix another revision, and changes nothing of this image.
    """
    name, revision = (labels.get(f"{image_labels.LABELS}.{key}", "") for key in ("image", "matrix-revision"))
    image = next((one.image for one in plan.plan(sources) if one.name == name), None)
    if image is None or (revision != image.revision and not image_labels.describe(labels, image)):
        return None
    if lock_file.state(image).status is not lock_file.Status.PRESENT:
        return None
    return claims_of(image, labels, sources)


def tried(
    engine: Runtime,
    image: Image,
    reference: str,
    sources: Sources,
    how: TrialArguments,
    *,
    only: Sequence[str] = (),
    on_evidence: Callable[[Evidence], None] = lambda _evidence: None,
) -> Tried:
    """Judge any image against a name's claims, or `only` those that hold one of these texts. Raises UserError."""
    wanted = Wanted(image=image, sources=sources, cache=common.cache(), tiers=how.tiers, only=only)
    telling = Telling(
        say=lambda text: talk.print(text, style="dim", highlight=False), on_record=_told, on_evidence=on_evidence
    )
    return trying.tried(engine, reference, wanted, how.gpus, telling)


def _told(record: Record) -> None:
    talk.print(f"measured {record.probe} in {record.seconds:.1f} s ({record.outcome})", style="dim", highlight=False)


def open_runtime(url: str | None) -> Runtime:
    """What judges images and need not build: an engine, Podman, or Apptainer, rid of what killed commands left."""
    runtime = apptainer.open_runtime(url)
    _sweep(runtime)
    return runtime


def open_engine(url: str | None, *, install: bool = True, builds: bool = True) -> Engine:
    """The engine to work with, rid of the containers and volumes that killed commands of this machine left there.

    `builds`: not Podman, which judges images and has no BuildKit.
    """
    engine = private_engine.open_engine(url, say=say, builds=builds) if install else connect(url, builds=builds)
    _sweep(engine)
    return engine


def _sweep(runtime: Runtime) -> None:
    if left := runtime.sweep():
        say(f"removed what killed commands left behind: {', '.join(left)}")


def pinned_bases() -> dict[str, str]:
    file = paths.workspace().root / base_images.PINS_FILE
    return dict(base_images.load_pins(file.read_text(encoding="utf-8", errors="replace"))) if file.is_file() else {}
