"""The release policy: which gate an image must pass, and which tags follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from images.errors import Problem, UserError
from images.publish import gate
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict


@dataclass(frozen=True, kw_only=True)
class ReleasePolicy:
    """What the matrix and the command line ask of an image."""

    gate: Sequence[Tier]
    """Tiers that must have passed before the image is published at all."""
    alias_gate: Sequence[Tier]
    """Tiers that must have passed before aliases (`latest`) follow: the matrix's gate."""
    aliases_of: Callable[[str], Sequence[str]]
    """Image name -> its aliases."""
    claims_of: Callable[[Mapping[str, str]], ClaimSet | None]
    """Labels of an image -> the claims that the matrix writes today; None where the matrix doesn't know the image."""
    no_claims: str = "matrix.yaml makes another image of this name, or none"
    """Why `claims_of` answers None."""
    row_of: Callable[[str], Sequence[str]] = lambda name: (name,)
    """Image name -> the images of its row in the matrix, one a platform. Of several, one tag names an index."""

    def require_open(self, where: str, verdicts: Sequence[Verdict], claims: ClaimSet | None) -> None:
        """Raises UserError with every reason why the gate is closed."""
        if reasons := gate.refusals(verdicts, self.gate, claims):
            asked = ",".join(map(str, self.gate))
            staging = f"the gate asks for {asked}; for a staging repository, give --gate static,cpu"
            then = staging if Tier.GPU in self.gate else "fix the image, or validate it again"
            raise UserError([Problem(where=where, cause=reason, then=then) for reason in reasons], code=1)

    def alias_refusal(self, verdicts: Sequence[Verdict], claims: ClaimSet | None) -> str:
        """Why aliases don't follow; empty if they do."""
        return next(iter(gate.refusals(verdicts, self.alias_gate, claims)), "")
