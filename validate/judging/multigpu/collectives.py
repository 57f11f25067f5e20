"""M1: collectives, NCCL's settings and library, and its transport."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from validate.contracts.multigpu import (
    CollectivesExpect,
    CollectivesRank,
    NcclExpect,
    NcclRank,
    NcclSettingsExpect,
    NcclSettingsRank,
    RanksEvidence,
    TransportExpect,
    TransportRank,
)
from validate.judging import Finding, by_subject, listed, typed
from validate.judging.multigpu._ranks import of_ranks


@typed
def collectives(_subject: str, expect: CollectivesExpect, evidence: RanksEvidence) -> Finding:
    """M1. expect: {device, ranks?, operations: [names], sizes: [numbers a rank]}."""
    return of_ranks(expect, evidence, _exact_problems, _exact_summary)


def _exact_problems(expect: CollectivesExpect, rank: CollectivesRank) -> Iterator[str]:
    sizes = [str(size) for size in expect["sizes"]]
    for name in expect["operations"]:
        exact, controls = rank["exact"].get(name, {}), rank["controls"].get(name, {})
        if wrong := [size for size in sizes if exact.get(size) is not True]:
            yield f"{name} of {listed(wrong)} numbers is not exact"
        if passing := [size for size in sizes if controls.get(size) is not False]:
            yield f"control: {name} of {listed(passing)} numbers is right for other ranks' data too"


def _exact_summary(expect: CollectivesExpect, ranks: Sequence[CollectivesRank]) -> str:
    return f"{len(ranks)} ranks: {listed(list(expect['operations']), limit=9)} exact at {len(expect['sizes'])} sizes"


@typed
def settings(_subject: str, expect: NcclSettingsExpect, evidence: RanksEvidence) -> Finding:
    """M1: what would change how NCCL works."""
    return of_ranks(expect, evidence, _setting_problems, lambda _expect, _ranks: "no file and no variable changes NCCL")


def _setting_problems(expect: NcclSettingsExpect, rank: NcclSettingsRank) -> Iterator[str]:
    for place, lines in rank["files"].items():
        if lines:
            yield f"{place} sets {listed(list(lines))}"
    injected = expect.get("injected", {})
    own = {name: value for name, value in rank["variables"].items() if injected.get(name) != value}
    if own:
        yield f"the image sets {listed([f'{name}={value}' for name, value in own.items()])}"


@typed
def library(_subject: str, expect: NcclExpect, evidence: RanksEvidence) -> Finding:
    """M1: one NCCL, of one owner, unchanged, of torch's CUDA. expect: {device, ranks?, cuda}."""
    return of_ranks(expect, evidence, _library_problems, _library_summary)


def _library_problems(expect: NcclExpect, rank: NcclRank) -> Iterator[str]:
    libraries = rank["libraries"]
    if len(libraries) != 1:
        yield f"{len(libraries)} NCCL libraries are loaded: {listed([one['path'] for one in libraries]) or 'none'}"
    for one in libraries:
        owners = one["owners"]
        if len(owners) != 1:
            names = listed([f"{owner['name']} {owner['version']}" for owner in owners]) or "no distribution"
            yield f"{one['path']} belongs to {names}"
        for owner in owners:
            if owner["version"].split("+")[0] != one["running"] and one["running"] != _three(owner["version"]):
                yield f"NCCL {one['running']} runs, {owner['name']} is {owner['version']}"
            if owner["as_recorded"] is not True:
                yield f"{one['path']} is not the file that {owner['name']} {owner['version']} brought"
        made_for = one["built"].get("cuda", "")
        if made_for and made_for.split(".")[0] != str(expect["cuda"]).split(".")[0]:
            yield f"NCCL {one['running']} is made for CUDA {made_for}, torch for {expect['cuda']}"


def _three(version: str) -> str:
    """2.27.5.1 is 2.27.5 to NCCL."""
    return ".".join(version.split(".")[:3])


def _library_summary(_expect: NcclExpect, ranks: Sequence[NcclRank]) -> str:
    one = ranks[0]["libraries"][0]
    owner, cuda = one["owners"][0], one["built"].get("cuda")
    return f"NCCL {one['running']}{f' for CUDA {cuda}' if cuda else ''} runs, from {owner['name']} {owner['version']}"


@typed
def transport(_subject: str, expect: TransportExpect, evidence: RanksEvidence) -> Finding:
    """M1: the best way that the host's GPUs have to each other. expect: {device, ranks?, link, injected}.

    `link` is nvlink, pcie, apart, or empty where the host could not tell: then the container's own view decides.
    Beside NVLink, NCCL reaches from GPU to GPU across PCIe switches alone (src/graph/paths.cc, ncclTopoCheckP2p:
    PATH_PXB; farther for two GPUs beside an x86 processor of AMD): where a host bridge lies between, it goes through
    shared memory by design. NVML does not tell which, so both are right there.
    """
    return of_ranks(expect, evidence, _transport_problems, _transport_summary)


def _transport_problems(expect: TransportExpect, rank: TransportRank) -> Iterator[str]:
    used = rank["connections"]
    if not used:
        yield "NCCL's log names no transport"
    link = expect.get("link") or ("access" if rank["peer_access"] else "apart")
    if link in ("nvlink", "pcie") and rank["peer_access"] is not True:
        yield "the host's GPUs reach each other, the container's do not"
    allowed = ("P2P",) if link == "nvlink" else ("P2P", "SHM")
    if wrong := [way for way in used if way.partition("/")[0] not in allowed]:
        blame = {name: value for name, value in rank["taken"].items() if name not in expect.get("injected", {})}
        why = f" ({listed([f'{name}={value}' for name, value in blame.items()])})" if blame else ""
        yield f"ranks of one host talk over {listed(wrong)}{why}, {' or '.join(allowed)} is possible"


def _transport_summary(expect: TransportExpect, ranks: Sequence[TransportRank]) -> str:
    ways = sorted({way for rank in ranks for way in rank["connections"]})
    return f"{len(ranks)} ranks talk over {listed(ways)} ({expect.get('link') or 'the host could not tell its links'})"


judge = by_subject({"collectives": collectives, "settings": settings, "nccl": library, "transport": transport})
