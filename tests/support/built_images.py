"""Images built as the product builds them, for tests that judge them by themselves."""

from pathlib import Path

from images.building import contexts
from images.building.contexts import BuildOptions
from images.config.paths import CHECKOUT
from images.context import base_images
from images.context.base_images import AcquiredBase
from images.context.hosting import host_settings
from images.engine import Engine
from images.locking import lock_file
from images.planning import plan
from images.planning.image import Image
from tests.support.sources import SOURCES


def build_without_trial(engine: Engine, name: str, base: AcquiredBase, cache: Path) -> Image:
    """An image of the matrix, built, tagged and not judged. `cache` is a folder for wheels that the context carries."""
    sources, host = SOURCES, host_settings()
    (planned,) = plan.select([name], sources)
    assert planned.image is not None
    options = BuildOptions(sources=sources, host=host, out=cache, cache=cache)
    prepared = contexts.prepare(
        planned.image, lock_file.read(planned.image, CHECKOUT.locks), base_images.base_context(base), options
    )
    engine.build(prepared.files, name, network=host.network(local=engine.facts.local))
    return planned.image
