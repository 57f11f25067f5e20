"""What a profile names as optional and an image goes without."""

from __future__ import annotations

from collections.abc import Iterator

from images.planning.candidate import Candidate
from images.planning.rules.rule import Finding, rule, warn


@rule
def declined_packages_are_said(candidate: Candidate) -> Iterator[Finding]:
    for name, reasons in candidate.declined.items():
        yield warn(f"lacks {name} (optional): {'; '.join(reasons)}")
