"""The benchmark `delivery` on real engines: pushed, pulled through a link by an empty engine, and nothing left."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import delivery, loopback, network
from benchmarks.session import Session
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.engine import Engine
from images.engine.progress import Progress
from tests.support.debian_tools import registry_program
from tests.support.small_base import small_base
from tests.support.sources import SOURCES

STEP = """\
FROM {base}
RUN head -c {size} /dev/urandom >/random
RUN sh -c 'printf "#!/bin/sh\\necho {told}\\n" >/bin/python3 && chmod 755 /bin/python3'
"""
SIZE = 30_000_000
"""Bytes of the image that nothing compresses: more than a link lets pass at once."""
SLOW = "40 Mb/s"
TOLD = json.dumps({"imported": 1e9, "stepped": 2e9, "loss": 6.5}).replace('"', r"\\\\\"")


def links() -> list[str]:
    shown = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split(":")[1].strip() for line in shown.splitlines()]


def discipline() -> str:
    return subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True).stdout


def test_a_network_of_its_own_has_a_loopback_alone_with_the_speed_of_a_link() -> None:
    before = links()
    with pytest.raises(KeyError), network.own_network():
        assert links() == ["lo"]
        network.shape("1 Gb/s")
        assert "tbf" in discipline() and "rate 1Gbit" in discipline()
        network.shape(network.LOOPBACK)
        assert "tbf" not in discipline()
        raise KeyError
    assert links() == before and "tbf" not in discipline(), "left where the work in it fails, too"


def test_an_image_is_pushed_pulled_through_a_link_and_started(
    engine: Engine, base: BaseContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "LINKS", {SLOW: "0.04gbit"})
    session = Session(engine=engine, host=HostSettings(), sources=SOURCES, progress=Progress(), repeat=2)
    data: dict[str, Any] = {"image": "i", "images": {}, "pushes": [], "runs": [], "blocked": []}
    store = tmp_path / "registry"
    store.mkdir()
    program = registry_program()
    with loopback.serving(program, store) as host, small_base(engine, base) as small:
        dockerfile = STEP.format(base=small.reference, size=SIZE, told=TOLD).encode()
        delivery.push_side(session, delivery.ALL_ARCHS, {"Dockerfile": dockerfile}, host, data)
    before = time.monotonic()
    delivery.pull_sides(session, program, store, tmp_path / "engine", data)
    by = [(one["compression"], one["by"]) for one in data["pushes"]]
    assert by == [("gzip", "the engine"), ("gzip", "truetag")]
    after = time.monotonic()
    assert len(data["runs"]) == 2 and not data["blocked"]
    for run in data["runs"]:
        assert run["image_id"] == data["images"][delivery.ALL_ARCHS] and run["loss"] == 6.5
        assert run["bytes"] == data["pushes"][1]["bytes"]
        assert run["seconds"] > 0.9 * (SIZE - network.BURST) * 8 / 40e6, "it passed a link that is not slow"
        assert 1e9 - after < run["imported"] < 1e9 - before and run["stepped"] - run["imported"] == pytest.approx(1e9)
    assert not engine.find(data["images"][delivery.ALL_ARCHS])
    assert {path.name for path in tmp_path.iterdir()} == {"registry"}
