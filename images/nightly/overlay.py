"""Installs versions as one layer over an existing image, instead of building the image.

This takes seconds and little disk where a build takes minutes. It validates the versions, not the build: a proposed
lock is built and validated like any other before the image gets its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from images.building import records, validating
from images.building.options import BuildOptions
from images.config.facts import Facts
from images.context import labels as image_labels
from images.context import templates
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.context.render import Context
from images.engine import Engine, ImageInfo
from images.engine.gpus import NO_GPU, Attachment
from images.engine.progress import Progress
from images.errors import UserError
from images.locking import lock_file
from images.nightly.canary import Locked, changes
from images.nightly.judge import cause_of, trial_of
from images.nightly.options import Judge
from images.nightly.state import Trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.image import image_claims
from validate.claims import ClaimSet, Tier

_REQUIREMENTS = "locks/moved.txt"
_MOUNTS = "--mount=type=bind,source=host,target=/run/host --mount=type=bind,source=locks,target=/run/locks"


def over(
    engine: Engine,
    controls: Mapping[str, Locked],
    options: BuildOptions,
    progress: Progress,
    parents: Mapping[str, str] | None = None,
) -> Judge:
    """A judge that lays versions over the images `controls` names. Raises NoSuchImage where the engine lacks one.

    `parents`: name -> what the engine calls such an image, where it is not that name.
    """

    def judge(locked: Locked, tiers: Sequence[Tier], label: str) -> Trial:
        start = time.monotonic()
        name = str(locked.image.name)
        below = (parents or {}).get(name, name)
        control, parent, tag = controls[name], engine.inspect(below), f"{name}-{label}"
        host = options.host
        network = host.network(local=engine.facts.local)
        try:
            reference = parent.id
            if changes(control, locked):
                built = engine.build(
                    context(control, locked, parent, host, below),
                    tag,
                    network=network,
                    on_event=progress.job(tag),
                    redact=host.redact,
                )
                reference = built.image_id
            found = _judged(engine, locked, reference, tiers, replace(options, out=options.out / tag))
        except UserError as error:
            return Trial(claims=(), cause=cause_of(error), seconds=round(time.monotonic() - start, 1))
        finally:
            engine.untag(tag)
        return found.model_copy(update={"seconds": round(time.monotonic() - start, 1)})

    return judge


def _judged(engine: Engine, locked: Locked, reference: str, tiers: Sequence[Tier], options: BuildOptions) -> Trial:
    image, info = locked.image, engine.inspect(reference)
    attachment, asked = validating.find_gpus(engine, image, options.gpus, tiers or options.tiers)
    claims = claims_of(locked, info.labels, options.sources.facts, attachment)
    evidence, verdict = validating.measure_and_judge(engine, reference, claims, asked, attachment)
    records.record_validation(options.out, evidence, verdict)
    return trial_of(info.id, info.size, evidence, verdict)


def claims_of(locked: Locked, labels: Mapping[str, str], facts: Facts, attachment: Attachment = NO_GPU) -> ClaimSet:
    """What an image with these labels and versions is held to."""
    missing = image_labels.declared_missing(locked.image, labels)
    claimed = ClaimContext.of(locked.image, locked.lock, facts, missing=missing, custom_base=False)
    # pip put other versions over what the control's build left: S10 is about that build.
    return image_claims(claimed.on_host(attachment)).less(_OF_BUILDS)


_OF_BUILDS = ("static.owners", "static.wheels")
_UNCONSTRAINED = "unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT"
"""The image holds its users to the versions that it was built with. Here others are tried on purpose."""


def context(control: Locked, locked: Locked, parent: ImageInfo, host: HostSettings, below: str = "") -> Context:
    """The layer: what moved is installed by hash, what is no longer needed goes, and the labels say so."""
    moved = changes(control, locked)
    names = {one.name for one in moved if one.after}
    gone = [one.name for one in moved if not one.after]
    layers = locked.lock.inputs.layers
    packages = [package for layer in layers for package in locked.lock.layers[layer] if package.name in names]
    missing = image_labels.declared_missing(control.image, parent.labels)
    image = replace(locked.image, revision=control.image.revision)
    labels = image_labels.labels(image, BaseContext(reference="", origin=""), missing)
    steps = ["python -m pip install --quiet --no-deps --no-cache-dir --require-hashes -r /run/" + _REQUIREMENTS]
    steps += [f"python -m pip uninstall --quiet --yes {' '.join(gone)}"] if gone else []
    dockerfile = [
        f"FROM {below or control.image.name}",
        "USER root",
        f"RUN {_MOUNTS} {_UNCONSTRAINED} && . /run/host/env && {' && '.join(steps)}",
        f"USER {parent.user}",
        *(f"LABEL {name}={templates.quoted(value)}" for name, value in labels.items()),
    ]
    return {
        "Dockerfile": ("\n".join(dockerfile) + "\n").encode(),
        _REQUIREMENTS: lock_file.print_requirements(packages),
        **host.files(),
    }
