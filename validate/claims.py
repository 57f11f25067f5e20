"""What an image is held to. Written from the matrix on the host, never from the image.

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
"""Claims about each file of an image: judged before anything of it runs (images/validation/admission.py)."""
HOST_PROBE = "host.image"
ORIGIN_PROBE = "host.origin"
HOST_PROBES = (HOST_PROBE, ORIGIN_PROBE)
"""What the engine's host measures of an image; the suite in the container can't."""

ARBITRARY_UID = 61234
"""A user whom no image knows, as Kubernetes and OpenShift choose them."""


class Tier(str, Enum):
    """What a probe needs: files only, a CPU, one GPU, several GPUs."""

    STATIC = "static"
    CPU = "cpu"
    GPU = "gpu"
    MULTIGPU = "multigpu"

    __str__ = str.__str__  # Python 3.10, which a foreign base may bring, has no StrEnum


class ImageKind(str, Enum):
    """Whose image it is, which decides what it may have of its own. In claims: `expect["image_kind"]`."""

    OURS = "ours"
    """Built by our Dockerfile on a base of the matrix: all that is in it is known."""
    ON_CUSTOM_BASE = "on custom base"
    """Built by our Dockerfile on somebody's base: what that brings is not known."""
    DERIVED = "derived"
    """Built by somebody's Dockerfile on one of our images."""

    __str__ = str.__str__


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One check that an image must pass."""

    check: str
    """What is checked, in a word: `pins`, `4bit-llama`, `attention`."""
    subject: str
    """What it is about: a distribution, a library, `environment`. (check, subject) is unique in an image."""
    tier: Tier
    probe: str
    """The probe that measures it, `TIER.MODULE`: `static.pins`."""
    statement: str
    """The sentence a person reads."""
    required: bool = True
    expect: Mapping[str, Any] = field(default_factory=dict)
    """JSON values: what the probe looks for and the judge compares with."""
    unproven: str = ""
    """A reason known before any measuring why this can't be validated (an optional wheel that could not be had)."""

    @property
    def key(self) -> str:
        return f"{self.check}/{self.subject}"

    @property
    def is_inside(self) -> bool:
        """Whether it can be measured in a container."""
        return self.probe not in HOST_PROBES

    def is_named(self, text: str) -> bool:
        """Tell whether a text names this claim: `pins/torch`, `pins`, `torch`, or a pattern such as `pins/t*`."""
        return text in (self.check, self.subject) or fnmatch.fnmatchcase(self.key, text)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Claim:
        return cls(**{**data, "tier": Tier(data["tier"])})


@dataclass(frozen=True, kw_only=True)
class ClaimSet:
    """All claims of one image, in the order a report shows them."""

    image: str
    claims: tuple[Claim, ...]
    admission: tuple[Claim, ...] = ()
    """Admission claims that a user did not choose: judged all the same before anything of the image runs."""

    def where(self, keep: Callable[[Claim], bool]) -> ClaimSet:
        """Return only these claims."""
        return replace(self, claims=tuple(filter(keep, self.claims)))

    def choose(self, wanted: Callable[[Claim], bool]) -> ClaimSet:
        """Return the claims that a user wants. Admission claims among the others are put aside, not dropped."""
        aside = [claim for claim in self.claims if claim.check in ADMISSION and not wanted(claim)]
        return replace(self.where(wanted), admission=(*self.admission, *aside))

    def in_tiers(self, tiers: Sequence[Tier]) -> ClaimSet:
        """Choose the claims of these tiers."""
        return self.choose(lambda claim: claim.tier in tiers)

    def inside(self) -> ClaimSet:
        """Those that can be measured in a container."""
        return self.where(lambda claim: claim.is_inside)

    def only(self, probes: Collection[str]) -> ClaimSet:
        """Those that these probes measure."""
        return self.where(lambda claim: claim.probe in probes)

    def less(self, probes: Collection[str]) -> ClaimSet:
        """Those that other probes measure."""
        return self.where(lambda claim: claim.probe not in probes)

    def named_by(self, texts: Collection[str]) -> ClaimSet:
        """Return the claims that one of these texts names: see Claim.is_named."""
        return self.choose(lambda claim: any(claim.is_named(text) for text in texts))

    def dumps(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def loads(cls, text: str) -> ClaimSet:
        data = json.loads(text)
        claims, admission = (
            tuple(map(Claim.from_json, data.get(name, ()))) for name in ("claims", "admission")
        )
        return cls(image=data["image"], claims=claims, admission=admission)
