"""A base of one's own that lacks what ours has: root as its user, Python's headers, venv, compilers."""

import pytest

from images.context import base_images, render
from images.context.base_context import Origin
from images.context.base_images import AcquiredBase
from images.context.hosting import host_settings
from images.engine import ContainerSpec, Engine
from images.locking import lock_file
from images.planning import plan
from tests.support.sources import SOURCES

pytestmark = pytest.mark.engine
BASE, TAG = "truetag-test-given-base:1", "truetag-test-on-given-base"
LAYER = """
RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && apt-get update -qq \\
 && apt-get install -qq --no-install-recommends python3 && mkdir /usr/local/cuda-12.6 && touch /usr/local/cuda-12.6/mine
USER 65534
"""


def test_what_a_custom_base_lacks_is_added_and_its_toolkit_stays(engine: Engine, base: AcquiredBase) -> None:
    (planned,) = plan.select(["cu126-torch27"], SOURCES)
    image, host = planned.image, host_settings()
    assert image is not None
    small = {
        name: content if name in ("light.txt", "tools.txt") else b""
        for name, content in lock_file.read(image).files.items()
    }
    try:
        engine.build({"Dockerfile": f"FROM {base.reference}{LAYER}".encode(), **host.files()}, BASE)
        given = base_images.acquire(engine, image.base, BASE, pinned={}, host=host, say=print)
        assert given.origin is Origin.CUSTOM and given.python is not None
        base_images.require_no_contradiction(image, given)
        context = render.render(image, small, base_images.base_context(given), render.Extras(host=host.files()))
        engine.build(context, TAG)
        check = (
            "test -e /usr/include/python3.11/Python.h && test -e /usr/local/cuda-12.6/mine && id -u && gcc --version"
        )
        with engine.container(ContainerSpec(TAG, ["sh", "-c", f"{check} && python3 -c 'import liger_kernel'"])) as box:
            done = box.run(timeout=600)
        assert (done.exit.code, done.stdout.split()[0]) == (0, str(render.USER)), done.stderr
    finally:
        engine.remove(TAG, force=True)
        engine.remove(BASE, force=True)
