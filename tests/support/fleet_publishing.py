"""Publishes the same image by a worker here, on Slurm and on Ray, and compares what the registry has afterwards.

By hand, with clusters and a registry of its own; prints a table in Markdown:

    python -m tests.support.fleet_publishing
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from images.bench import loopback
from images.building import records, validating
from images.commands.executors import ExecutorArguments
from images.commands.publishing_on import Publishing, PublishRequest
from images.config.names import ImageName
from images.context import labels as image_labels
from images.engine import BuildSpec, Engine, connect
from images.fleet import travel
from images.locking import lock_file
from images.planning import plan
from images.publish.policy import ReleasePolicy
from images.publish.publication import PublishResult
from images.publish.unpublished_image import PublishOptions
from images.registry.client import Registry
from images.registry.reference import Repository
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from tests.support import fleet_images
from tests.support.broken_images import NAME
from tests.support.ray_cluster import ray_cluster
from tests.support.slurm_cluster import slurm_cluster
from tests.support.sources import SOURCES
from validate.claims import ClaimSet, Tier

_FLEET = "workers: {cpu: {slurm: {partition: cpu, minutes: 20}, ray: {resources: {engine: 1}}}}\n"
_BASE = f"sha256:{'0' * 64}"
_LABELS = {"image": NAME, "torch": "2.7.1", "pins": "{}", "matrix-revision": "0123456789ab", "base-digest": _BASE}


def main() -> None:
    """Raises AssertionError where a manifest or a tag is another."""
    with (
        tempfile.TemporaryDirectory(prefix="truetag-publishing-") as name,
        connect(None) as engine,
        ExitStack() as held,
    ):
        folder = Path(name)
        (folder / "fleet.yaml").write_text(_FLEET)
        host = held.enter_context(loopback.registry(folder / "registry"))
        (tag,) = held.enter_context(fleet_images.thin_images(engine, "truetag-publishing", 1, {}))
        image = held.enter_context(_labelled(engine, tag))
        claims = _claims(engine)
        attestation = _validated(engine, image, claims, folder / NAME)
        info = engine.inspect(image)
        reference = travel.send(engine, info, Repository(host, "lab"), folder / "push", lambda _event: None)
        travel.note(attestation, info.id, reference)
        slurm = held.enter_context(slurm_cluster(folder / "slurm", {"n1": "", "n2": ""}))
        address = held.enter_context(ray_cluster([engine.facts.url]))
        environments: dict[str, Mapping[str, str]] = {
            "local": {},
            "slurm": slurm.environment,
            "ray": {"RAY_ADDRESS": address},
        }
        found = {}
        for on, environment in environments.items():
            options = _options(Repository(host, f"images-{on}"), attestation, claims, folder / f"cache-{on}")
            found[on] = _published(on, options, folder / "fleet.yaml", {"DOCKER_HOST": engine.facts.url, **environment})
        assert slurm.queue() == []
        assert len(set(map(json.dumps, found.values()))) == 1, found
        with Registry(Repository(host, "lab")) as lab:
            assert lab.find(NAME) is None


def _published(on: str, options: PublishOptions, file: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Tag -> manifest, after a worker has pushed."""
    told: list[str] = []
    with mock.patch.dict(os.environ, {**environment, "XDG_CACHE_HOME": str(options.cache)}):
        start = time.monotonic()
        publishing = Publishing(how=ExecutorArguments(on=on, file=file), say=lambda _key, text: told.append(text))
        (done,) = publishing.all([[PublishRequest(options=options)]])
        seconds = time.monotonic() - start
    assert isinstance(done, PublishResult), done
    tags = _tags(options.repository)
    sys.stdout.write(f"| {on} | {seconds:.1f} s | {told[-1]} | {', '.join(sorted(tags))} |\n")
    return tags


def _tags(repository: Repository) -> dict[str, str]:
    with Registry(repository) as registry:
        tags = [tag for tag in registry.tags() if not tag.startswith("sha256-")]
        return {tag: registry.get(tag).digest for tag in sorted(tags)}


@contextmanager
def _labelled(engine: Engine, parent: str) -> Iterator[str]:
    tag = f"{parent}-labelled"
    lines = [f"FROM {parent}", *(f"LABEL dev.truetag.{key}={json.dumps(value)}" for key, value in _LABELS.items())]
    try:
        engine.build({"Dockerfile": "\n".join(lines).encode()}, tag, BuildSpec(network_mode="none"))
        yield tag
    finally:
        engine.remove(tag, force=True)


def _claims(engine: Engine) -> ClaimSet:
    """Of the whole image, those that the small one can keep."""
    (planned,) = plan.select([NAME], SOURCES)
    assert planned.image
    missing = image_labels.declared_missing(planned.image, engine.inspect(NAME).labels)
    lock = lock_file.read(planned.image)
    context = ClaimContext.of(planned.image, lock, SOURCES.facts, missing=missing, custom_base=False)
    return image_claims(context).about(fleet_images.CLAIMS)


def _validated(engine: Engine, image: str, claims: ClaimSet, folder: Path) -> Path:
    """The folder of its attestation, as a build leaves it."""
    evidence, verdict = validating.validate_image(engine, image, claims, (Tier.STATIC,))
    records.record_trial(folder, evidence, verdict)
    base = {"reference": "x", "origin": "made", "digest": _BASE}
    record: dict[str, Any] = {"digest": evidence.digest, "base": base, "engine": {"version": engine.facts.version}}
    (folder / "build.json").write_text(json.dumps(record))
    return folder


def _options(to: Repository, attestation: Path, claims: ClaimSet, cache: Path) -> PublishOptions:
    policy = ReleasePolicy(
        gate=(Tier.STATIC,),
        alias_gate=(Tier.STATIC,),
        aliases_of=lambda _name: ("latest",),
        claims_of=lambda _labels: claims,
    )
    name = ImageName.parse(NAME)
    return PublishOptions(name=name, repository=to, attestation=attestation, policy=policy, locks={}, cache=cache)


if __name__ == "__main__":
    main()
