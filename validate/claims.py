"""Holds the claims of an image: what it must have, written from the matrix, not from the image.

A claim says which probe must measure it and what the judge compares the evidence with (`expect`).
The same file travels into the container, so only the standard library is used.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

ADMISSION = (
    "files",
    "records",
    "wheel-tags",
    "bytecode",
    "debian",
    "modes",
    "lookup",
    "authorities",
    "origin",
)
"""Checks of an image's files that are judged before anything of the image runs
(images/validation/admission.py)."""
HOST_PROBE = "host.image"
ORIGIN_PROBE = "host.origin"
HOST_PROBES = (HOST_PROBE, ORIGIN_PROBE)
"""Probes that the engine's host runs; the suite in the container cannot."""

STANDS_ON = "an image on "
"""How claims and verdicts call a derived image: `an image on cu126-torch25`. It is never called by
its base image's name."""
AUDIT_OF = "audit of "
"""The beginning of the name of what was audited, in evidence and verdict. No image of ours has such
a name."""
ARBITRARY_UID = 61234
"""A user ID that no image knows, as Kubernetes and OpenShift may choose it."""


class Tier(str, Enum):
    """What a probe needs: files only, a CPU, one GPU, several GPUs, two containers with GPUs."""

    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    MULTIGPU = "multigpu"
    MULTINODE = "multinode"

    __str__ = str.__str__  # Python 3.10, which a foreign base may bring, has no StrEnum


ON_REQUEST = (Tier.MULTINODE,)
"""Tiers that are measured only if `--tier` names them."""
GPU_TIERS = (Tier.GPU, Tier.MULTIGPU, Tier.MULTINODE)
"""Tiers whose claims are about GPUs."""


class ImageKind(str, Enum):
    """Who built an image, which decides what it may add. In claims: `expect["image_kind"]`."""

    OURS = "ours"
    """Built by our Dockerfile on a base of the matrix: all that is in it is known."""
    ON_CUSTOM_BASE = "on custom base"
    """Built by our Dockerfile on a base of the user: what that brings is not known."""
    DERIVED = "derived"
    """Built by a user's Dockerfile on one of our images."""

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One check that an image must pass."""

    check: str
    """What is checked, in a word: `pins`, `4bit-llama`, `attention`."""
    subject: str
    """A distribution, a library, `environment`. An image has each (check, subject) once."""
    tier: Tier
    probe: str
    """The probe that measures it, `TIER.MODULE`: `static.pins`."""
    statement: str
    """The sentence a person reads."""
    required: bool = True
    expect: Mapping[str, Any] = field(default_factory=dict)
    """JSON values: what the probe looks for and the judge compares with."""
    unproven: str = ""
    """Why it cannot be measured, if that is known beforehand: an optional wheel was missing."""

    @property
    def key(self) -> str:
        """Return the claim's name: `pins/torch`."""
        return f"{self.check}/{self.subject}"

    @property
    def is_of_container(self) -> bool:
        """Return whether it is measured in a container of the image, not by the engine's host."""
        return self.probe not in HOST_PROBES

    def is_named(self, text: str) -> bool:
        """Return whether a text names this claim: `pins/torch`, `pins`, `torch` or `pins/t*`."""
        return text in (self.check, self.subject) or fnmatch.fnmatchcase(self.key, text)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Claim:
        """Return the claim from its JSON. Raises ValueError, TypeError or LookupError."""
        return cls(**{**data, "tier": Tier(data["tier"])})


@dataclass(frozen=True, kw_only=True)
class ClaimSet:
    """All claims of one image, in the order a report shows them."""

    image: str
    claims: tuple[Claim, ...]
    admission: tuple[Claim, ...] = ()
    """Admission claims that a user did not choose. They are judged all the same (ADMISSION)."""

    def where(self, condition: Callable[[Claim], bool]) -> ClaimSet:
        """Return the claims for which the condition is true."""
        return replace(self, claims=tuple(filter(condition, self.claims)))

    def choose(self, condition: Callable[[Claim], bool]) -> ClaimSet:
        """Return the claims that a user asked for, those for which the condition is true.

        Admission claims among the others are not dropped: they move to `admission`.
        """
        aside = []
        for claim in self.claims:
            if claim.check in ADMISSION and not condition(claim):
                aside.append(claim)
        return replace(self.where(condition), admission=(*self.admission, *aside))

    def in_tiers(self, tiers: Sequence[Tier]) -> ClaimSet:
        """Choose the claims of these tiers."""
        return self.choose(lambda claim: claim.tier in tiers)

    def of_container(self) -> ClaimSet:
        """Return the claims that are measured in a container of the image.

        The others are about what only the engine's host knows, such as labels and layers.
        """
        return self.where(lambda claim: claim.is_of_container)

    def measured_by(self, probes: Collection[str]) -> ClaimSet:
        """Return the claims that these probes measure."""
        return self.where(lambda claim: claim.probe in probes)

    def not_measured_by(self, probes: Collection[str]) -> ClaimSet:
        """Return the claims that other probes measure."""
        return self.where(lambda claim: claim.probe not in probes)

    def named_by(self, texts: Collection[str]) -> ClaimSet:
        """Return the claims that one of these texts names: see Claim.is_named."""
        return self.choose(lambda claim: any(claim.is_named(text) for text in texts))

    def dumps(self) -> str:
        """Return the claims as JSON."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> ClaimSet:
        """Return the claims in a text that `dumps` wrote.

        Raises ValueError, TypeError or LookupError if it is another text.
        """
        data = json.loads(text)
        claims = tuple(map(Claim.from_json, data.get("claims", ())))
        admission = tuple(map(Claim.from_json, data.get("admission", ())))
        return cls(image=data["image"], claims=claims, admission=admission)
