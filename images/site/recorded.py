"""Reads what the status of images is made from: recorded runs, and the record of layers.

`choose`, `plan` and the tables of the documentation show the status of an image by it; the site has
further runs, from nightly runs and registries (images/commands/site.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from images.building.other_images import RecordedPass
from images.config.facts import Facts
from images.config.matrix import Sources
from images.locking import layer_record
from images.locking.layer_record import LayerRecord
from images.planning.image import Image
from images.site import records, runs
from images.site.runs import Run
from images.site.status import ImageStatus, image_status, layers_of_today
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from validate.claims import GPU_TIERS, Claim
from validate.judging import Status


@dataclass(frozen=True)
class RecordedRuns:
    """The recorded runs of all images."""

    runs: Sequence[Run]
    layers: LayerRecord
    facts: Facts

    @classmethod
    def read(cls, sources: Sources) -> "RecordedRuns":
        """Read results/runs.jsonl and locks/layers.json beside the matrix.

        Raises UserError for a file that is damaged.
        """
        recorded = runs.recorded_runs([sources.workspace.results])
        return cls(recorded, layer_record.read(sources.workspace.locks), sources.facts)

    def status(self, image: Image, *, with_claims: bool = True) -> ImageStatus:
        """Return the status of an image that people build.

        `with_claims`: also count the claims that were added since the last run, and that no run has
        judged. This takes longer.
        """
        claims: Sequence[Claim] = ()
        if with_claims:
            claims = image_claims(ClaimContext(image=image, facts=self.facts)).claims
        name = str(image.name)
        return image_status(
            [run for run in self.runs if run.image == name],
            pins={pin.name: pin.version for pin in image.pins},
            layers=layers_of_today(self.layers, name),
            claims=claims,
        )


def read_passes(sources: Sources) -> list[RecordedPass]:
    """Return the recorded runs in which claims about GPUs passed, the newest first.

    Runs of images that were broken on purpose are left out. `is_of_today` says whether the image
    would have the same layers if it were built today. Raises UserError for a file of results/ or
    locks/ that is damaged.
    """
    layers = layer_record.read(sources.workspace.locks)
    lines = [line for line in records.read(sources.workspace.results) if line.date]
    lines.sort(key=lambda line: (line.date, line.id), reverse=True)
    passes = []
    for line in lines:
        passed: list[str] = []
        for tier in GPU_TIERS:
            passed += line.claims.get(tier, {}).get(Status.PASS, [])
        if line.experiment or not passed:
            continue
        today = layers_of_today(layers, line.image)
        has_layers = [line.payload.get(layer) in digests for layer, digests in today.items()]
        recorded_pass = RecordedPass(
            run=line.id,
            image=line.image,
            digest=line.digest,
            payload=line.payload,
            gpus=tuple(line.gpus),
            claims=frozenset(passed),
            is_of_today=bool(today) and all(has_layers),
        )
        passes.append(recorded_pass)
    return passes
