"""Two builds on a real engine: a difference is found and named, normalised timestamps give the same layer."""

import re
import uuid
from pathlib import Path

import pytest

from benchmarks.builder import build_cache
from images.config.paths import CHECKOUT
from images.context import base_images, bootstrap, render
from images.context.base_images import AcquiredBase
from images.context.hosting import host_settings
from images.context.labels import Origin
from images.context.templates import EPOCH
from images.engine import Engine, connect
from images.engine import layers as layers_of
from images.engine.buildkit import BuildEvent, LogLine
from images.engine.progress import Progress
from images.locking import debian, lock_file
from images.planning.image import Image
from tests.support.other_engine import Other
from tools import reproduce

pytestmark = pytest.mark.engine
TAG = "truetag-test-timestamps:1"


def test_the_first_file_that_differs_is_named_and_nothing_is_left(engine: Engine, base: AcquiredBase) -> None:
    dockerfile = f"FROM {base.reference}\nRUN mkdir /opt/folder && date +%N >/opt/folder/now\n"
    before = {record.id for record in build_cache(engine)}
    with Progress() as progress:
        found = reproduce.reproduce(engine, "test", {"Dockerfile": dockerfile.encode()}, progress, None)
    assert not found.equal
    assert [layer.first == layer.second for layer in found.layers] == [True, False]
    # Within one second of each other they differ in the content alone, else in a folder's time first.
    assert re.match(r"opt(/folder(/now)?)?: (time|sha256) ", found.layers[1].difference)
    first = [record for record in build_cache(engine) if record.id not in before]
    assert len([record for record in first if "date" in record.made_by]) <= 1, "the second build's record is gone"


def test_equal_layers_leave_no_files_that_the_engine_forgot(engine: Engine, base: AcquiredBase) -> None:
    folder = Path(engine.facts.data_root, "overlay2")
    if not engine.facts.local or not folder.is_dir():
        pytest.skip("the engine's files are not here to be looked at")
    word = uuid.uuid4().hex
    step = f"echo {word} >/opt/{word} && touch -d @0 /opt/{word} /opt"
    dockerfile = f"FROM {base.reference}\nRUN {step}\n".encode()
    with Progress() as progress:
        found = reproduce.reproduce(engine, "test", {"Dockerfile": dockerfile}, progress, None)
    assert found.equal and len(found.layers) == 2
    holding = list(folder.glob(f"*/diff/opt/{word}"))
    assert len(holding) == 1, "the first build's, which the build cache keeps"


NORMALISED = """
FROM system AS early
RUN --mount=type=tmpfs,target=/run echo {new} >/opt/early
FROM early
RUN --mount=type=tmpfs,target=/run \\
    --mount=type=tmpfs,target=/mnt \\
    --mount=type=tmpfs,target=/srv/made/for \\
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \\
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \\
    echo earlier >/opt/earlier && echo 1 >/opt/twice \\
    && sh /run/scripts/record_change_times.sh \\
    && echo 2 >/opt/twice && echo late >/opt/x && ln -s /nowhere /opt/link && echo lent >/mnt/mounted \\
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py {epoch} \\
    && stat -c "%n %Y" /opt/early /opt/earlier /opt/twice /opt/x /opt/link /mnt/mounted /srv /srv/made /etc/resolv.conf
"""
"""What is written a moment before record_change_times.sh stands for an earlier step, however fast the next begins."""


def test_a_step_normalises_the_timestamps_of_what_it_wrote_and_nothing_else(
    engine: Engine, base: AcquiredBase, image: Image
) -> None:
    context = render.render(
        image, lock_file.read(image, CHECKOUT.locks).files, base_images.base_context(base), host=host_settings().files()
    )
    text = context["Dockerfile"]
    assert isinstance(text, bytes)
    system = text.split(b"# ---- tools")[0].decode()
    told: list[BuildEvent] = []
    context["Dockerfile"] = f"{system}{NORMALISED.format(epoch=EPOCH, new=uuid.uuid4().hex)}".encode()
    try:
        engine.build(context, TAG, on_event=told.append)
    finally:
        engine.untag(TAG)
    lines = [
        event.text.split()
        for event in told
        if isinstance(event, LogLine) and event.text.startswith(("/opt", "/mnt", "/srv", "/etc"))
    ]
    times = {line[0]: int(line[1]) for line in lines}
    normalised = {path for path, time in times.items() if time == EPOCH}
    assert normalised == {"/opt/twice", "/opt/x", "/opt/link", "/srv", "/srv/made"}
    assert set(times) - normalised == {"/opt/early", "/opt/earlier", "/mnt/mounted", "/etc/resolv.conf"}


def test_a_layer_counts_the_same_whichever_engine_wrote_it(engine: Engine, trixie: Other, base: AcquiredBase) -> None:
    """The other engine (26.1) writes what both are compared by; this machine's may write names and kinds of files."""
    steps = "mkdir -p /opt/a/b && echo x >/opt/a/f && ln -s f /opt/a/l && echo y >/opt/a/b/g && chmod 4755 /opt/a/f"
    dates = "chgrp 42 /opt/a/b/g && touch -h -d @0 /opt/a/l && touch -d @0 /opt/a/f /opt/a/b/g /opt/a/b /opt/a /opt"
    dockerfile = {"Dockerfile": f"FROM {base.reference}\nRUN {steps} && {dates}\n".encode()}
    trixie.take(base.reference, engine)
    other, tag = connect(trixie.url), TAG
    try:
        for one in (engine, other):
            one.build(dockerfile, tag, no_cache=True)
        info = engine.inspect(tag)
        found = layers_of.stored(Path(engine.facts.data_root), info.layers) if engine.facts.local else {}
        if not found:
            pytest.skip("the engine's files are not here to be read")
        assert tuple(map(layers_of.canonical_diff_id, found.values())) == other.inspect(tag).layers
    finally:
        engine.untag(tag)


def test_the_same_lock_gives_the_same_base(engine: Engine, image: Image, base: AcquiredBase) -> None:
    if base.origin is not Origin.BOOTSTRAPPED:
        pytest.skip("there is a registry: no base is made here")
    try:
        lock = debian.require(image.base, CHECKOUT.locks)
        made = bootstrap.bootstrap(engine, image.base, lock, "truetag-test-base:1", host_settings())
        assert made.id == base.digest
    finally:
        engine.untag("truetag-test-base:1")
