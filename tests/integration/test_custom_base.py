"""Bases of one's own: what they have is read, and what they lack is added."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from images.config.names import Minor
from images.config.paths import CHECKOUT
from images.context import base_images, render
from images.context.hosting import HostSettings, host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.errors import UserError
from images.locking import lock_file
from images.planning import user_overlay
from images.planning.image import Base, Image
from tests.support import sources
from tests.support.engine_contents import built

pytestmark = pytest.mark.engine
TAG = "truetag-test-on-given-base"
APT = "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && apt-get update -qq &&"
INSTALL = f"{APT} apt-get install -qq --no-install-recommends"
BARE = f"""
{INSTALL} python3 python3-packaging
RUN mkdir /usr/local/cuda-12.6 && touch /usr/local/cuda-12.6/mine
USER 65534
"""
"""Of a base as people have them: with a user, a bare Python, a toolkit, and no compiler."""
FOR_ROOT_ONLY = f"""
{INSTALL} python3-dev python3-venv gcc g++
RUN mkdir -m 700 /root/own && cp /usr/bin/python3.11 /root/own/python3.11
ENV PATH=/root/own:$PATH
"""


@pytest.fixture(scope="module")
def host() -> HostSettings:
    return host_settings()


@pytest.fixture(scope="module")
def bare(engine: Engine, base: BaseContext, host: HostSettings) -> Iterator[str]:
    with _built(engine, f"FROM {base.reference}{BARE}", "bare", host) as tag:
        yield tag


def _built(
    engine: Engine, dockerfile: str, name: str, host: HostSettings
) -> AbstractContextManager[str]:
    tag = f"truetag-test-given-base:{name}"
    return built(engine, tag, dockerfile, host.files(), host.network(local=True))


def _acquire(engine: Engine, base: Base, reference: str, host: HostSettings) -> BaseContext:
    return base_images.acquire(
        engine, base, reference, root=CHECKOUT.root, host=host, on_progress=print
    )


@contextmanager
def _partly_built(
    engine: Engine, image: Image, custom: BaseContext, host: HostSettings
) -> Iterator[str]:
    """Yield the tag of an image on a base, with the packages of one small layer and the toolkit."""
    lock = lock_file.read(image, CHECKOUT.locks)
    files = dict.fromkeys(lock.files, b"")
    for name in ("light.txt", "tools.txt"):
        files[name] = lock.files[name]
    context = render.render(image, files, custom, host=host.files())
    engine.build(context, TAG, network=host.network(local=engine.facts.local))
    try:
        yield TAG
    finally:
        engine.remove(TAG, force=True)


def _output_on(
    engine: Engine, image: Image, custom: BaseContext, command: str, host: HostSettings
) -> str:
    """Build a part of an image on a base, run a command in it, and return what it prints."""
    with (
        _partly_built(engine, image, custom, host) as tag,
        engine.container(ContainerSpec(tag, ["sh", "-c", command])) as container,
    ):
        output = container.run(timeout=600)
    assert output.code == 0, output.stderr
    return output.stdout


def test_what_a_custom_base_lacks_is_added_its_toolkit_kept(
    engine: Engine, bare: str, host: HostSettings
) -> None:
    image = sources.image("cu126-torch27")

    custom = _acquire(engine, image.base, bare, host)

    assert (custom.origin, custom.python) == ("custom", "/usr/bin/python3.11")
    output = _output_on(
        engine,
        image,
        custom,
        "test -e /usr/include/python3.11/Python.h && test -e /usr/local/cuda-12.6/mine"
        " && id -u && gcc --version && python3 -c 'import liger_kernel, sys; print(sys.prefix)'"
        # The base's own packages are not in the environment.
        " && ! python3 -c 'import packaging' 2>/dev/null",
        host,
    )
    assert output.split()[0] == str(user_overlay.USER)
    assert output.split()[-1] == "/opt/venv"


def test_a_base_of_the_matrix_may_be_a_custom_one(
    engine: Engine, bare: str, host: HostSettings
) -> None:
    """It is read like one that is given by --base."""
    row = Base(
        key="own",
        reference=bare,
        suite=None,
        python=Minor(3, 11),
        glibc=Minor(2, 36),
        custom=True,
    )

    assert _acquire(engine, row, base_images.AUTO, host) == _acquire(engine, row, bare, host)


def test_a_base_that_can_not_be_built_on_is_refused_with_every_reason(
    engine: Engine, bare: str, base: BaseContext, host: HostSettings
) -> None:
    row = Base(key="own", reference="unused", suite=None, python=Minor(3, 13), glibc=Minor(2, 99))
    with pytest.raises(UserError, match=r"it has glibc 2\.36.*; it has Python 3\.11\.\d"):
        _acquire(engine, row, bare, host)

    image = sources.image("cu126-torch27")
    without_all = f"FROM {base.reference}\nRUN rm /usr/bin/apt* /usr/bin/find\n"
    with _built(engine, without_all, "nothing", host) as reference:
        lacking = r"it lacks gcc, g\+\+, GNU find, Python 3\.11; it has no apt-get"
        with pytest.raises(UserError, match=lacking):
            _acquire(engine, image.base, reference, host)

    with _built(engine, f"FROM {base.reference}{FOR_ROOT_ONLY}", "root", host) as reference:
        closed = r"users other than root can't start its /root/own/python3\.11"
        with pytest.raises(UserError, match=closed):
            _acquire(engine, image.base, reference, host)
