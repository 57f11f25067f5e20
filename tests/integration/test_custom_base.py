"""Bases of one's own: what they have is read, and what they lack is added."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import pytest

from images.config.names import Minor
from images.config.paths import CHECKOUT
from images.config.platforms import Platform
from images.context import base_images, render
from images.context.hosting import HostSettings, host_settings
from images.context.labels import BaseContext
from images.engine import ContainerSpec, Engine
from images.errors import UserError
from images.locking import lock_file
from images.locking.lock_file import Lock
from images.planning import user_overlay
from images.planning.image import Base, Image
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from tests.support import sources
from tests.support.broken_images import judged
from tests.support.engine_contents import built
from tests.support.small_base import small_base
from tests.support.sources import SOURCES
from validate.judge import ClaimVerdict
from validate.judging import Status

pytestmark = pytest.mark.engine
TAG = "truetag-test-on-given-base"
APT = "RUN --mount=type=bind,source=host,target=/run/host . /run/host/env && apt-get update -qq &&"
INSTALL = f"{APT} apt-get install -qq --no-install-recommends"
TOOLKIT = "RUN mkdir /usr/local/cuda-12.6"
"""An empty toolkit, which a build keeps: so it downloads none."""
BARE = f"""
{INSTALL} python3-minimal
{TOOLKIT} && touch /usr/local/cuda-12.6/mine
RUN mkdir -p /usr/lib/python3/dist-packages && touch /usr/lib/python3/dist-packages/own.py
USER 65534
"""
"""Of a base as people have them: with a user, a toolkit, a Python with a module of its own that
lacks most of its standard library (Debian's python3-minimal), and no compiler."""
WITHOUT_PACKAGE_MANAGER = f"""
{INSTALL} python3-dev python3-venv gcc g++
RUN rm -rf /usr/bin/apt* /usr/lib/apt /etc/apt /var/lib/apt && rm -rf /usr/bin/dpkg* /var/lib/dpkg
{TOOLKIT}
"""
"""Of a Debian base with all that a build needs, and without apt, dpkg and its list of packages."""
OF_AN_ORGANISATION = """
RUN mkdir -p /etc/org /opt/agent && echo 'server = inventory.example' >/etc/org/agent.conf
RUN printf '#!/bin/sh\\nexec "$@"\\n' >/opt/agent/start && chmod 755 /opt/agent/start
RUN printf '[global]\\nindex-url = https://pypi.example/simple\\n' >/etc/pip.conf
RUN cp /usr/bin/env /opt/agent/helper && chmod 4755 /opt/agent/helper
RUN mkdir -p /root/.cache/pip && echo x >/root/.cache/pip/wheel
ENTRYPOINT ["/opt/agent/start"]
"""
"""Instructions that add what organisations put into their bases: an agent with a program of root's
rights, an index, a cache and an entrypoint."""
FAULTY = """
RUN cp -L /usr/lib/x86_64-linux-gnu/libz.so.1 /usr/local/lib/libz.so.1
RUN mkdir /workspace && echo 'raise SystemExit' >/workspace/random.py
RUN chmod 600 /usr/lib/python3.11/xdrlib.py
"""
"""Instructions that plant what breaks an image: a library and a module in front of others, and a
file of Python that only root can read."""
FOR_ROOT_ONLY = f"""
{INSTALL} python3-dev python3-venv gcc g++
RUN mkdir -m 700 /root/own && cp /usr/bin/python3.11 /root/own/python3.11
ENV PATH=/root/own:$PATH
"""


OF_THE_BASE = {"base/modes": "/opt/agent/helper", "base/leftovers": "/root/.cache/pip"}
"""Claims that fail on the base of an organisation and are not required -> what the reason names."""
OF_THE_IMAGE = ("environment/variables", "image/settings", "lookup/paths", "modes/users")
"""Claims that hold on it and are required."""


@pytest.fixture(scope="module")
def host() -> HostSettings:
    return host_settings()


@pytest.fixture(scope="module")
def bare(engine: Engine, base: BaseContext, host: HostSettings) -> Iterator[str]:
    with _built(engine, f"FROM {base.reference}{BARE}", "bare", host) as tag:
        yield tag


@pytest.fixture(scope="module")
def without_package_manager(engine: Engine, base: BaseContext, host: HostSettings) -> Iterator[str]:
    dockerfile = f"FROM {base.reference}{WITHOUT_PACKAGE_MANAGER}"
    with _built(engine, dockerfile, "no-package-manager", host) as tag:
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


def _small_lock(image: Image) -> Lock:
    """Return the lock of an image, without the packages of all layers but one small one."""
    lock = lock_file.read(image, CHECKOUT.locks)
    files = dict.fromkeys(lock.files, b"")
    for name in ("light.txt", "tools.txt"):
        files[name] = lock.files[name]
    return replace(lock, files=files)


@contextmanager
def _partly_built(
    engine: Engine, image: Image, custom: BaseContext, host: HostSettings
) -> Iterator[str]:
    """Yield the tag of an image on a base, with the packages of one small layer and the toolkit."""
    files = _small_lock(image).files
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


def _judge_on(
    engine: Engine, image: Image, custom: BaseContext, keys: Sequence[str], host: HostSettings
) -> dict[str, ClaimVerdict]:
    """Build a part of an image on a base, and return the verdicts of claims about its files.

    `keys` name the claims, and are those of the result.
    """
    context = ClaimContext.from_lock(
        image, _small_lock(image), SOURCES.facts, missing={}, custom_base=True
    )
    claims = image_claims(context)
    chosen = tuple(claim for claim in claims.claims if claim.key in keys)
    with _partly_built(engine, image, custom, host) as tag:
        verdict = judged(engine, tag, replace(claims, claims=chosen))
    return {judged_claim.claim.key: judged_claim for judged_claim in verdict.claims}


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
        " && id -u && gcc --version && python3 -c 'import bz2, ctypes, ssl'"
        " && /usr/bin/python3.11 -c 'import own'"
        " && python3 -c 'import liger_kernel, sys; print(sys.prefix)'"
        # The base's own packages are not in the environment.
        " && ! python3 -c 'import own' 2>/dev/null",
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


def test_a_base_without_a_package_manager_is_built_upon_and_what_it_brings_is_not_required(
    engine: Engine, without_package_manager: str, host: HostSettings
) -> None:
    """What it brings is reported: it is one of an organisation."""
    image = sources.image("cu126-torch27")
    dockerfile = f"FROM {without_package_manager}{OF_AN_ORGANISATION}"
    with _built(engine, dockerfile, "organisation", host) as reference:
        custom = _acquire(engine, image.base, reference, host)

        output = _output_on(
            engine,
            image,
            custom,
            # A mount leaves its folder in the layer, dated today, and no build would give it again.
            "! command -v apt-get dpkg && test ! -e /var/lib/apt && gcc --version >/dev/null"
            " && python3 -c 'import liger_kernel, sys; print(sys.prefix)'",
            host,
        )
        # The same image, from the engine's cache.
        rows = _judge_on(engine, image, custom, [*OF_THE_BASE, *OF_THE_IMAGE], host)

    assert output == "/opt/venv\n"
    assert set(rows) == {*OF_THE_BASE, *OF_THE_IMAGE}
    for key, culprit in OF_THE_BASE.items():
        assert (rows[key].status, rows[key].claim.required) == (Status.FAIL, False), rows[key]
        assert culprit in rows[key].reason
    for key in OF_THE_IMAGE:
        assert (rows[key].status, rows[key].claim.required) == (Status.PASS, True), rows[key]
    assert "reported: /etc/pip.conf" in rows["environment/variables"].reason
    assert "/opt/agent/start" in rows["image/settings"].reason


def test_faults_of_a_base_that_break_the_image_fail(
    engine: Engine, without_package_manager: str, host: HostSettings
) -> None:
    image = sources.image("cu126-torch27")
    dockerfile = f"FROM {without_package_manager}{FAULTY}"
    with _built(engine, dockerfile, "faulty", host) as reference:
        custom = _acquire(engine, image.base, reference, host)

        rows = _judge_on(engine, image, custom, ["lookup/paths", "modes/users"], host)

    for row in rows.values():
        assert (row.status, row.claim.required) == (Status.FAIL, True), row
    assert "/usr/local/lib/libz.so.1 is found before" in rows["lookup/paths"].reason
    assert "/workspace/random.py is found before" in rows["lookup/paths"].reason
    assert "/usr/lib/python3.11/xdrlib.py" in rows["modes/users"].reason


@pytest.fixture
def held_for_arm64(engine: Engine, registry: str) -> Iterator[str]:
    """Yield the name of an image for arm64 in the engine, which the registry does not have."""
    name = f"{registry}/org/base:1"
    context: render.Context = {"Dockerfile": b"FROM scratch\nCOPY Dockerfile /\n"}
    engine.build(context, name, platform=Platform.ARM64)
    try:
        yield name
    finally:
        engine.remove(name, force=True)


def test_a_base_that_the_engine_has_for_another_platform_is_pulled_for_this_one(
    engine: Engine, base: BaseContext, held_for_arm64: str, host: HostSettings
) -> None:
    """It is pulled and then read, which ends with what this small base lacks."""
    image = sources.image("cu126-torch27")
    arm64 = engine.inspect(held_for_arm64)
    with small_base(engine, base) as small:
        engine.tag(small.reference, held_for_arm64)
        assert "error" not in engine.sdk.push(held_for_arm64)
    engine.tag(arm64.handle, held_for_arm64)

    with pytest.raises(UserError, match="can't be built on: it has no glibc"):
        _acquire(engine, image.base, held_for_arm64, host)

    assert engine.inspect(held_for_arm64).architecture == "amd64"


def test_a_base_that_no_registry_has_for_this_platform_is_refused(
    engine: Engine, held_for_arm64: str, host: HostSettings
) -> None:
    image = sources.image("cu126-torch27")
    absent = held_for_arm64.replace("base:1", "other:1")
    engine.tag(held_for_arm64, absent)
    cause = "the engine has it for arm64, the image is for linux/amd64, and pulling it .* failed"

    try:
        with pytest.raises(UserError, match=cause):
            _acquire(engine, image.base, absent, host)
    finally:
        engine.untag(absent)
