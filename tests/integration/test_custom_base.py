"""Bases of one's own: what ours has and they lack is added, what they have is read."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from images.config.names import Minor
from images.config.paths import CHECKOUT
from images.context import base_images, render
from images.context.base_images import read_python
from images.context.hosting import HostSettings, host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.locking import lock_file
from images.planning import user_overlay
from images.planning.image import Base
from tests.support import sources
from tests.support.engine_contents import built

pytestmark = pytest.mark.engine
BASE, TAG = "truetag-test-given-base:1", "truetag-test-on-given-base"
WITH_VENV, OWN = "truetag-test-given-base:venv", "truetag-test-given-base:own"
APT = "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env &&"
LAYER = f"""
{APT} apt-get update -qq \\
 && apt-get install -qq --no-install-recommends python3 \\
 && mkdir /usr/local/cuda-12.6 && touch /usr/local/cuda-12.6/mine
USER 65534
"""
VENV = f"""
USER root
{APT} apt-get install -qq --no-install-recommends python3-venv python3-packaging
RUN python3 -m venv --system-site-packages /opt/own
RUN mkdir $(echo /opt/own/lib/*/site-packages)/torch
RUN echo 'cuda = "12.6"' > $(echo /opt/own/lib/*/site-packages)/torch/version.py
"""


@pytest.fixture(scope="module")
def host() -> HostSettings:
    return host_settings()


@pytest.fixture(scope="module")
def given_base(engine: Engine, base: BaseContext, host: HostSettings) -> Iterator[str]:
    """Yield a base as people have them: with a user, a bare Python, a toolkit, no compiler.

    The Python has neither headers nor venv.
    """
    with _built(engine, f"FROM {base.reference}{LAYER}", BASE, host) as tag:
        yield tag


def _built(
    engine: Engine, dockerfile: str, tag: str, host: HostSettings
) -> AbstractContextManager[str]:
    return built(engine, tag, dockerfile, host.files(), host.network(local=True))


def test_what_a_custom_base_lacks_is_added_its_toolkit_kept(
    engine: Engine, given_base: str, host: HostSettings
) -> None:
    image = sources.image("cu126-torch27")
    # Only two small layers are installed.
    locks = dict.fromkeys(lock_file.read(image, CHECKOUT.locks).files, b"")
    for name in ("light.txt", "tools.txt"):
        locks[name] = lock_file.read(image, CHECKOUT.locks).files[name]
    custom = base_images.acquire(
        engine, image.base, given_base, root=CHECKOUT.root, host=host, on_progress=print
    )
    assert custom.origin == "custom" and custom.python
    base_images.require_no_contradiction(image, custom)
    context = render.render(image, locks, custom, host=host.files())
    check = (
        "test -e /usr/include/python3.11/Python.h && test -e /usr/local/cuda-12.6/mine"
        " && id -u && gcc --version"
    )
    command = ["sh", "-c", f"{check} && python3 -c 'import liger_kernel'"]
    try:
        engine.build(context, TAG)
        with engine.container(ContainerSpec(TAG, command)) as container:
            output = container.run(timeout=600)

        assert output.code == 0, output.stderr
        assert output.stdout.split()[0] == str(user_overlay.USER)
    finally:
        engine.remove(TAG, force=True)


def test_a_custom_base_is_read(engine: Engine, given_base: str, host: HostSettings) -> None:
    """An audit reads the Python that PATH finds first: Debian's, then a virtual environment's."""
    row = Base(key="own", reference="unused", suite=None, python=Minor(3, 11), glibc=Minor(2, 36))
    own = f"FROM {WITH_VENV}\nENV PATH=/opt/own/bin:$PATH\nUSER 1000\n"
    with (
        _built(engine, f"FROM {given_base}{VENV}", WITH_VENV, host),
        _built(engine, own, OWN, host),
    ):
        system = read_python(engine, WITH_VENV)
        custom = base_images.acquire(
            engine, row, OWN, root=CHECKOUT.root, host=host, on_progress=print
        )

    assert (system.executable, system.torch_cuda) == ("/usr/bin/python3", None)
    assert system.installed["packaging"]
    assert (custom.origin, custom.reference) == ("custom", OWN)
    assert (custom.environment, custom.torch_cuda) == ("/opt/own", "12.6")
