"""What the engine knows of an image: labels, settings, size, history. Measured on the host, judged like all else (S8).

Credentials in it are told by kind and place, never quoted: evidence is kept and published.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from images.engine import ImageInfo
from images.engine.runtime import Runtime
from validate.claims import HOST_PROBE, ClaimSet
from validate.environment import credentials
from validate.evidence import Measurement, Outcome, Record

_SHOWN = 80


def records(engine: Runtime, image: ImageInfo, claims: ClaimSet) -> Iterator[Record]:
    """One record of all claims that the host measures; none where there are no such claims. Raises NoSuchImage."""
    subjects = [claim.subject for claim in claims.claims if claim.probe == HOST_PROBE]
    if not subjects:
        return
    started = time.monotonic()
    evidence = {
        "labels": dict(image.labels),
        "bytes": image.size,
        "architecture": image.architecture,
        "user": image.user,
        "entrypoint": list(image.entrypoint),
        "driver": {name: value for name, value in image.env.items() if name.startswith("NVIDIA_")},
        "secrets": list(credentials_of(engine, image)),
    }
    seconds = round(time.monotonic() - started, 3)
    yield Record(
        probe=HOST_PROBE,
        outcome=Outcome.COMPLETED,
        seconds=seconds,
        measurements=tuple(Measurement(subject=one, seconds=seconds, evidence=evidence) for one in subjects),
    )


def credentials_of(engine: Runtime, image: ImageInfo) -> Iterator[dict[str, str]]:
    """Kind and place of each, in variables, labels and build steps: a step's history has its build arguments."""
    texts = [(f"the variable {name}", f"{name}={value}") for name, value in image.env.items()]
    texts += [(f"the label {name}", value) for name, value in image.labels.items()]
    texts += [
        (f"the build step `{step.created_by[:_SHOWN].split('=')[0]}`", step.created_by)
        for step in engine.history(image.id)
    ]
    for where, text in texts:
        for _, kind in credentials.in_text(text):
            yield {"where": where, "kind": kind}
