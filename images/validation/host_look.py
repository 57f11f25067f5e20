"""What the engine's host sees of an image: configuration, history and layers. No process of the image runs."""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from images.engine import Engine, ImageInfo, configuration
from validate.claims import HOST_PROBE, ClaimSet
from validate.environment import credentials
from validate.evidence import Measurement, Outcome, Record

_MOST_LISTED = 40


def inspected(engine: Engine, image: ImageInfo, claims: ClaimSet) -> Sequence[Record]:
    """What the engine knows of an image (`image`): one record for all claims that the host measures. Raises
    NoSuchImage."""
    asked = claims.only([HOST_PROBE]).claims
    if not asked:
        return ()
    started = time.monotonic()
    steps = [step for step, _ in reversed(engine.history(image.id))]
    evidence: dict[str, Any] = {
        "labels": dict(image.labels),
        "bytes": image.size,
        "architecture": image.architecture,
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "command": list(image.command),
        "directory": image.workdir,
        "further": dict(image.further),
        "layers": [name for name in configuration.payload(image, steps) if name != configuration.SETTINGS],
        "variables": sorted(image.env),
        "driver": {name: value for name, value in image.env.items() if name.startswith("NVIDIA_")},
        "secrets": list(credentials_of(engine, image)),
    }
    found = [
        (claim.subject, _unseen(engine, image) if claim.subject == "layers" else evidence)
        for claim in asked
        if not (claim.subject == "layers" and claim.unproven)
    ]
    seconds = round(time.monotonic() - started, 3)
    measured = tuple(Measurement(subject=name, seconds=seconds, evidence=one) for name, one in found)
    return (Record(probe=HOST_PROBE, outcome=Outcome.COMPLETED, seconds=seconds, measurements=measured),)


def find_parent(engine: Engine, name: str, image: ImageInfo) -> ImageInfo | None:
    """The image of this name, if another stands on it: all its layers are the lowest of that. Its history may lie."""
    found = engine.find(name)
    return found if found and image.layers[: len(found.layers)] == found.layers else None


def history(engine: Engine, name: str, image: ImageInfo) -> list[str]:
    """An image's steps, newest first; below those of one that stands on `name` by its layers, that one's, whatever its
    own history says of them."""
    own, parent = [step for step, _ in engine.history(image.id)], find_parent(engine, name, image)
    above = len(image.layers) - len(parent.layers) if parent else 0
    if not above or configuration.steps_above(own):
        return own
    made = [place for place, one in enumerate(own, 1) if not configuration.empty(one)]
    return [*own[: dict(enumerate(made)).get(above - 1)], *(step for step, _ in engine.history(name))]


def _unseen(engine: Engine, image: ImageInfo) -> dict[str, Any]:
    """What of an image's layers is in none of its containers, and travels with it."""
    from images.engine import exported

    if (found := exported.unseen(engine, image)) is None:
        return {"unread": "the layers lie where this user can't read them: ask as root, on the engine's own machine"}
    files, count = found
    secrets = ((path, kind) for _, path, data in files for _, kind in credentials.of_file(data, path))
    return {
        "files": count,
        "hidden": [f"/{path}" for layer, path, _ in files if layer][:_MOST_LISTED],
        "secrets": [{"path": f"/{path}", "kind": kind} for path, kind in dict.fromkeys(secrets)],
    }


def credentials_of(engine: Engine, image: ImageInfo) -> Iterator[dict[str, str]]:
    """Kind and place of each credential in variables, labels and build steps, never the text: evidence is published."""
    texts = [(f"the variable {name}", f"{name}={value}") for name, value in image.env.items()]
    texts += [(f"the label {name}", value) for name, value in image.labels.items()]
    for step, _ in engine.history(image.id):  # with its build arguments
        texts.append((f"the build step `{step[:80].split('=')[0]}`", step))
    settings = {**engine.inspected(image.id)["Config"], "Env": (), "Labels": ()}
    texts += [(f"{name} of its configuration", json.dumps(value)) for name, value in settings.items()]
    for where, text in texts:
        for _, kind in credentials.in_text(text):
            yield {"where": where, "kind": kind}
