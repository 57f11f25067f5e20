"""A site of what a registry has, attestations and forged ones; and choosing from the index that a site publishes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks import loopback
from images.commands.site import blocked_locks, write
from images.planning import plan
from images.publish.statements import TEST_RESULT
from images.registry.client import Registry
from images.registry.reference import Repository
from images.site.assemble import make
from images.site.index import Index, dumps
from tests.support import site_samples as samples
from tests.support.commands import Called, call
from tests.support.published import attach, published
from tests.support.sources import SOURCES

NAME = "cu130-torch211"
DAY = "2026-11-20T12:00:00+00:00"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`HOST:PORT/images` of Debian's docker-registry on loopback."""
    with loopback.registry(tmp_path_factory.mktemp("registry") / "here") as host:
        yield f"{host}/images"


def site(repository: str, out: Path) -> Called:
    folders = ("--results", str(out / "none"))
    return call("site", "--from", repository, "--out", str(out), "--date", "2026-11-21", *folders)


def test_tags_digests_and_attestations_come_from_the_registry(repository: str, tmp_path: Path) -> None:
    with Registry(Repository.parse(repository)) as registry:
        kept = published(registry, NAME, date=DAY, name=NAME, created="2026-11-20T10:00:00Z")
        fixed = f"{NAME}-20261120-{kept.image_id[7:19]}"
        registry.put(kept.manifest, fixed)
        registry.put(kept.manifest, "cu999-torch99")
    done = site(repository, tmp_path)
    assert done.returncode == 0, done.stderr
    images = {one["name"]: one for one in json.loads((tmp_path / "index.json").read_text())["images"]}
    image = images[NAME]
    assert (image["digest"], image["published"]) == (kept.image_id, f"{repository}@{kept.manifest.digest}")
    assert image["tags"] == [NAME, fixed] and image["get"] == f"docker pull {repository}:{NAME}"
    row = next(one for one in image["runs"] if one["tier"] == "static")
    assert (row["verdict"], row["date"], row["current"]) == ("PASS", "2026-11-20", True)
    assert image["validation"] == "partly" and (tmp_path / row["page"]).is_file()
    assert not [one for one in images.values() if one["published"] and one["name"] != NAME]


def test_an_attestation_that_its_evidence_contradicts_stops_the_site(repository: str, tmp_path: Path) -> None:
    with Registry(Repository.parse(f"{repository}/lying")) as registry:
        said = published(registry, NAME, date=DAY, name=NAME).of(TEST_RESULT)[0].predicate
        attach(registry, NAME, TEST_RESULT, {**said, "passedTests": [*said["passedTests"], "gpu/G1 gemm"]})
    done = site(f"{repository}/lying", tmp_path)
    assert done.returncode == 1 and "not what the evidence says" in done.stderr
    assert not list(tmp_path.iterdir()), "written last"


def test_a_tag_that_names_another_image_stops_the_site(repository: str, tmp_path: Path) -> None:
    with Registry(Repository.parse(f"{repository}/mistaken")) as registry:
        published(registry, NAME, date=DAY, name="cu126-torch27")
    done = site(f"{repository}/mistaken", tmp_path)
    assert done.returncode == 1 and f"its attestation is of cu126-torch27, the tag says {NAME}" in done.stderr


def chosen(place: str, *arguments: str) -> Called:
    return call("choose", "--published", place, "--gpu", "H100", "--driver", "580.95.05", *arguments)


def test_an_image_is_chosen_from_a_published_index_as_from_the_plan(tmp_path: Path) -> None:
    blocked = blocked_locks([one.image for one in plan.plan(SOURCES) if one.image], SOURCES)
    write({"index.json": dumps(make(samples.known(blocked=blocked)))}, tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    plain = call("choose", "--gpu", "H100", "--driver", "580.95.05", "--json", "--torch", "<2.15")
    try:
        for place in (str(tmp_path), str(tmp_path / "index.json"), f"http://127.0.0.1:{server.server_port}/"):
            found = chosen(place, "--json", "--torch", "<2.15")
            assert found.returncode == 0, found.stderr
            names = [one["name"] for one in json.loads(found.stdout)["fitting"]]
            assert set(names) - {samples.ARCH} == {one["name"] for one in json.loads(plain.stdout)["fitting"]}
        missing = chosen(f"http://127.0.0.1:{server.server_port}/none.json")
        assert missing.returncode == 2 and "answers 404" in missing.stderr
    finally:
        server.shutdown()
        server.server_close()
    told = chosen(str(tmp_path), "--torch", "2.14").stdout
    assert f"Take {samples.VALIDATED}: " in told and "Validated: static PASS, cpu PASS, gpu on H100 PASS, " in told
    told = chosen(str(tmp_path), "--torch", "2.9", "--driver", "550.90").stdout
    assert f"    docker pull registry.example/images:{samples.REBUILT}\n" in told and "Not validated" in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[]", "is no index.json of this version"),
        ('{"schema_version": 1}', "schema_version: Input should be 2"),
        ("nonsense", "is no index.json of this version"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_index_is_refused(tmp_path: Path, content: str | None, told: str) -> None:
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    done = chosen(str(tmp_path / "index.json"))
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr
    assert chosen("http://127.0.0.1:9/").returncode == 2 and chosen("gopher://x/").returncode == 2


def test_an_index_with_control_characters_or_unknown_archs_is_refused() -> None:
    data = json.loads(dumps(make(samples.known())))
    for key, value in (("get", "docker pull x\x1b[2J"), ("archs", ["ninety"]), ("name", "../x"), ("min_driver", "new")):
        bent = {**data, "images": [{**data["images"][0], key: value}]}
        with pytest.raises(ValidationError, match=key):
            Index.model_validate(bent)
