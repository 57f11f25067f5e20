"""Record what several builds of an image gave, so that others are judged by it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from images.errors import command, failed
from images.locking import layer_record
from images.locking.layer_record import Measured
from images.reproduction.builds import BuildResult
from validate.judging import plural


def record_builds(locks: Path, builds: Sequence[BuildResult]) -> str:
    """Add builds that agree to the record in the folder `locks`, and return a sentence about it.

    The last build was made from this matrix, as it is committed. Raises UserError if the recipe is
    not known, or if one of the builds has another recipe or is no build of its own.
    """
    last = builds[-1]
    if not last.recipe:
        # `unknown` says what to do, too: build on a base that is known by its bytes.
        cause = (
            "nothing was recorded, as it is not known from what bytes the image is built: "
            f"{last.unknown}"
        )
        then = (
            "change what the end of this reason names, then give "
            f"`{command('reproduce', last.image, '--record')}` again"
        )
        raise failed(last.image, cause, then)

    record = layer_record.read(locks)
    for built in builds:
        # A recorded run names no recipe. But all its layers were found to be those of this build.
        has_same_recipe = built.recipe in ({}, last.recipe)
        if not built.counts_as_build or not has_same_recipe:
            cause = f"the build on {built.on} is not known to be of the same steps as this one"
            then = (
                "build on both machines from the same commit, or give the command without --beside"
            )
            raise failed("--record", cause, then)
        rows = []
        for layer in built.layers:
            rows.append(
                Measured(
                    layer=layer.layer,
                    recipe=last.recipe[layer.layer],
                    diff_id=layer.diff_id,
                    written_as=layer.written_as,
                    change=layer.change,
                )
            )
        build = layer_record.Build(id=built.id, image=built.image, on=built.on, date=built.date)
        record = layer_record.add(record, rows, build)
    layer_record.write(record, locks)
    layers = plural(len(last.layers), "layer")
    return f"recorded {layers} of {last.image} in {locks / layer_record.FILE}"
