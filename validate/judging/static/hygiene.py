"""S8, as root sees the image's files: leftovers, credentials, the home."""

from __future__ import annotations

from collections.abc import Mapping

from validate.contracts.static import HygieneEvidence, HygieneExpect
from validate.judging import Finding, Judging, Status, failed, listed, passed, typed, unproven
from validate.judging.text import conclude


@typed
def _leftovers(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    """expect: {leftovers: {path pattern: what it is}}."""
    faults = [
        f"{found['files']} files ({found['bytes'] / 1e6:.1f} MB) of {expect['leftovers'][pattern]} are left: "
        f"{found['example']}"
        for pattern, found in evidence["leftovers"].items()
    ]
    return _with_unreadable(evidence, conclude(faults, f"none of {evidence['files']} files is a build's leftover"))


@typed
def _secrets(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    faults = [
        f"{one['path']} holds {one['kind']}" + (f" (line {one['line']})" if one["line"] else "")
        for one in evidence["secrets"]
    ]
    return _with_unreadable(evidence, conclude(faults, f"no credential in {evidence['read']} small files"))


@typed
def _home(_subject: str, expect: HygieneExpect, evidence: HygieneEvidence) -> Finding:
    home = evidence["home"]
    if "error" in home:
        return failed(f"the home {home['path']!r} can't be used: {home['error']}")
    if not home["for_all"]:
        return failed(f"the home {home['path']} is not for every user to write to (mode {home['mode']})")
    return passed(f"{home['path']} is for every user to write to")


def _with_unreadable(evidence: HygieneEvidence, finding: Finding) -> Finding:
    if finding.status is Status.PASS and evidence["unreadable"]:
        return unproven(f"{finding.reason}, but {listed(evidence['unreadable'])} can't be read by this user")
    return finding


JUDGES: Mapping[str, Judging] = {"leftovers": _leftovers, "secrets": _secrets, "home": _home}
"""By subject of S8."""
