"""S4: every symbol that a library needs is exported."""

from __future__ import annotations

from validate.binaries.demangle import readable
from validate.contracts.static import LackingSymbols, SymbolsEvidence, SymbolsExpect
from validate.judging import Finding, failed, listed, typed
from validate.judging.text import conclude, matches


@typed
def judge(_subject: str, expect: SymbolsExpect, evidence: SymbolsEvidence) -> Finding:
    """S4. expect: {host, other_platforms, exceptions: [{path, symbols, reason}]}."""
    if not evidence["checked"]:
        return failed("there is no library whose symbols could be looked up")
    faults = [f"{one['path']} can't be read: {one['error']}" for one in evidence["unreadable"]]
    lacking = [one for one in evidence["lacking"] if not _may_lack(expect, one)]
    faults += [_lacking(one) for one in lacking]
    if hidden := evidence["lacking_count"] - len(evidence["lacking"]):
        faults.append(f"{hidden} more libraries lack symbols")
    good = f"{evidence['symbols']} symbols that {evidence['checked']} libraries and programs need are there"
    return conclude(faults, good)


def _may_lack(expect: SymbolsExpect, one: LackingSymbols) -> bool:
    names = [*one["undefined"], *(version for version, _, _ in one["versions"])]
    rows = expect["exceptions"]
    return any(
        matches(one["path"], [f"*/{row['path']}"]) and all(matches(name, row["symbols"]) for name in names)
        for row in rows
    )


def _lacking(one: LackingSymbols) -> str:
    owner = listed(one["owners"]) or "no distribution"
    if one["versions"]:
        version, name, file = one["versions"][0]
        return f"{one['path']} of {owner} needs {version} of {name}, which {file} does not define"
    names = [readable(name) for name in one["undefined"]]
    count = one["undefined_count"]
    more = f" and {count - len(names[:2])} more" if count > len(names[:2]) else ""
    return f"{one['path']} of {owner} needs {', '.join(names[:2])}{more}, which none of its libraries has"
