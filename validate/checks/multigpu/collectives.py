"""collectives: a collective that is not exact spoils every gradient: whole numbers are summed. The probe also tells
NCCL's version, its transport and its settings."""

import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from validate.checks.multigpu import _launch
from validate.checks.multigpu._ranks import Rank, RanksExpect, Worker, judge_ranks
from validate.claims import Claim
from validate.environment import installed, user_environment, wheel_contents
from validate.harness.forked import mapped
from validate.judging import Finding, listed

_SIZES = (1, 1027, 1 << 20)
"""Numbers a rank: NCCL takes other protocols for small, odd and large ones."""
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send and receive")
_VARIABLES = re.compile(r"(TORCH_)?NCCL_(?!VERSION$)\w+")
"""NCCL_VERSION is what NVIDIA's CUDA images write down: NCCL does not read it."""
_VERSION = re.compile(rb"NCCL version (\d+(?:\.\d+)+)\+cuda(\d+\.\d+)")

measure = partial(_launch.measure, __name__)


def environment(folder: Path) -> dict[str, str]:
    """So that NCCL tells what it does, in a log a process."""
    subsystems = "INIT,ENV,P2P,SHM,NET,GRAPH,COLL"
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": subsystems, "NCCL_DEBUG_FILE": str(folder / "nccl.%p")}


def rank(worker: Worker, claim: Claim) -> dict[str, Any]:
    """Measure one subject."""
    subjects: Mapping[str, Callable[[Worker], dict[str, Any]]] = {
        "exact": _collectives,
        "settings": lambda _worker: settings(),
        "nccl": _library,
        "transport": _transport,
    }
    return subjects[claim.subject](worker)


def _collectives(worker: Worker) -> dict[str, Any]:
    """Compare each collective at each size with the right result, and with that of swapped ranks (the control)."""
    exact: dict[str, dict[str, bool]] = {}
    controls: dict[str, dict[str, bool]] = {}
    for size in _SIZES:
        for name, (found, wanted, other) in _results(worker, size).items():
            exact.setdefault(name, {})[str(size)] = bool((found == wanted).all())
            controls.setdefault(name, {})[str(size)] = bool((found == other).all())
    return {"exact": exact, "controls": controls}


def _results(worker: Worker, size: int) -> Mapping[str, tuple[Any, Any, Any]]:
    """By collective what it gave, the right result, and a wrong one."""
    torch, distributed, me, ranks = worker.torch, worker.distributed, worker.rank, range(worker.ranks)
    after, before, last = (me + 1) % len(ranks), (me - 1) % len(ranks), len(ranks) - 1
    index = torch.arange(size, device=worker.device, dtype=torch.int64)

    def data(rank: int, step: int = 0) -> Any:
        """Whole numbers that differ by rank, by place, and by whom they are for."""
        return index * 1_000_003 + (rank + 1) * 7_919_000_000_019 + step * 104_729

    def total(step: int = 0) -> Any:
        return sum(data(rank, step) for rank in ranks)

    reduced, scattered, told, received = data(me), torch.empty_like(index), data(me), torch.empty_like(index)
    gathered, swapped = (torch.empty(len(ranks) * size, device=worker.device, dtype=torch.int64) for _ in "ab")
    parts, to_each = [data(rank) for rank in ranks], torch.cat([data(me, step) for step in ranks])
    distributed.all_reduce(reduced)
    distributed.all_gather_into_tensor(gathered, data(me))
    distributed.reduce_scatter_tensor(scattered, to_each)
    distributed.broadcast(told, src=last)
    distributed.all_to_all_single(swapped, to_each)
    worker.pass_on(data(me), received)
    return {
        "all_reduce": (reduced, total(), data(me) * len(ranks)),
        "all_gather": (gathered, torch.cat(parts), torch.cat([*parts[1:], parts[0]])),
        "reduce_scatter": (scattered, total(me), total(after)),
        "broadcast": (told, data(last), data(0)),
        "all_to_all": (swapped, torch.cat([data(rank, me) for rank in ranks]), to_each),
        "send and receive": (received, data(before), data(me)),
    }


def settings() -> dict[str, Any]:
    """NCCL variables of the image (and of the validation run), and the lines of the files it reads settings from."""
    given = user_environment.recorded().environ
    places = ["/etc/nccl.conf", str(Path(given.get("HOME", "/root"), ".nccl.conf")), given.get("NCCL_CONF_FILE", "")]
    texts = {place: Path(place).read_text("utf-8", "replace") for place in places if place and Path(place).is_file()}
    return {
        "variables": {name: value for name, value in sorted(given.items()) if _VARIABLES.fullmatch(name)},
        "files": {
            place: [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
            for place, text in texts.items()
        },
    }


def _library(worker: Worker) -> dict[str, Any]:
    """The NCCL that this process has mapped: its own version, the CUDA it was built for, whose file it is."""
    owners = installed.owners(installed.distributions(sys.path))
    libraries = []
    for file in mapped(r"/libnccl\.so"):
        content = Path(file).read_bytes()
        own = [
            {
                "name": owner.name,
                "version": owner.version,
                "as_recorded": wheel_contents.record_hash(content)
                == next(entry.sha256 for entry in owner.entries or () if entry.path == file),
            }
            for owner in owners.get(file, [])
        ]
        libraries.append({"path": file, "running": running(file), "built": built(content), "owners": own})
    return {"cuda": str(worker.torch.version.cuda), "libraries": libraries}


def running(file: str) -> str:
    """What the library itself answers: 22809 is 2.28.9."""
    number = ctypes.c_int()
    ctypes.CDLL(file).ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def built(content: bytes) -> dict[str, str]:
    """Version and CUDA as they were compiled into it; empty where it does not say."""
    found = _VERSION.search(content)
    return {"version": found[1].decode(), "cuda": found[2].decode()} if found else {}


def _transport(worker: Worker) -> dict[str, Any]:
    """What NCCL's own log of this process says, and whether the driver lets the GPUs reach each other."""
    cuda = importlib.import_module("torch.cuda")
    others = [one for one in range(worker.ranks) if one != worker.rank]
    access = all(cuda.can_device_access_peer(worker.rank, one) for one in others)
    log = worker.folder / f"nccl.{os.getpid()}"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {"peer_access": access, **parsed(text)}


def parsed(log: str) -> dict[str, Any]:
    """NCCL's INFO log: connections by transport, and variables that it took from somewhere."""
    connections = re.findall(r"(?:Channel|\[\d+\]) .*? via ([A-Z][A-Za-z0-9]*(?:/[A-Za-z]+)*)", log)
    return {
        "connections": {way: connections.count(way) for way in sorted(set(connections))},
        "taken": dict(re.findall(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?(?:\s|$)", log)),
    }


class CollectivesRank(Rank):
    """By collective and number of values: whether the result is exact, and whether it is also right for other data."""

    exact: Mapping[str, Mapping[str, bool]]
    controls: Mapping[str, Mapping[str, bool]]


class CollectivesEvidence(TypedDict):
    ranks: Sequence[CollectivesRank]


def judge_collectives(_subject: str, expect: RanksExpect, evidence: CollectivesEvidence) -> Finding:
    """Judge that every collective is exact at every size, and told apart from other ranks' data."""
    names = listed(list(OPERATIONS), limit=9)
    return judge_ranks(
        expect,
        evidence["ranks"],
        _inexact_collectives,
        lambda ranks: f"{len(ranks)} ranks: {names} exact at {len(_SIZES)} sizes",
    )


def _inexact_collectives(rank: CollectivesRank) -> Iterator[str]:
    """Yield collectives that are not exact, or whose control passes."""
    sizes = [str(size) for size in _SIZES]
    for name in OPERATIONS:
        exact = rank["exact"].get(name, {})
        wrong = [size for size in sizes if exact.get(size) is not True]
        if wrong:
            yield f"{name} of {listed(wrong)} numbers is not exact"

        controls = rank["controls"].get(name, {})
        passing = [size for size in sizes if controls.get(size) is not False]
        if passing:
            yield f"control: {name} of {listed(passing)} numbers is right for other ranks' data too"


class SettingsExpect(RanksExpect):
    """`injected`: variables that the validation run sets."""

    injected: Mapping[str, str]


class SettingsRank(Rank):
    """NCCL's variables, and the lines of the files that it reads settings from."""

    variables: Mapping[str, str]
    files: Mapping[str, Sequence[str]]


class SettingsEvidence(TypedDict):
    ranks: Sequence[SettingsRank]


def judge_settings(_subject: str, expect: SettingsExpect, evidence: SettingsEvidence) -> Finding:
    """Judge that nothing of the image changes how NCCL works."""
    # Evidence from before the run set variables has no `injected`.
    injected = expect.get("injected", {})
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: _settings_of_image(rank, injected),
        lambda _ranks: "no file and no variable changes NCCL",
    )


def _settings_of_image(rank: SettingsRank, injected: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that the run did not set itself."""
    for place, lines in rank["files"].items():
        if lines:
            yield f"{place} sets {listed(list(lines))}"
    own = [f"{name}={value}" for name, value in rank["variables"].items() if injected.get(name) != value]
    if own:
        yield f"the image sets {listed(own)}"


class LibraryExpect(RanksExpect):
    """`cuda`: torch's."""

    cuda: str


class Owner(TypedDict):
    """A distribution that owns a library, and whether the file is as its RECORD says."""

    name: str
    version: str
    as_recorded: bool


class Library(TypedDict):
    """An NCCL that is loaded: the version that it reports, and what was compiled into it."""

    path: str
    running: str
    built: Mapping[str, str]
    owners: Sequence[Owner]


class LibraryRank(Rank):
    cuda: str
    libraries: Sequence[Library]


class LibraryEvidence(TypedDict):
    ranks: Sequence[LibraryRank]


def judge_library(_subject: str, expect: LibraryExpect, evidence: LibraryEvidence) -> Finding:
    """Judge that one NCCL runs, of one owner, unchanged, made for torch's CUDA."""
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: _library_problems(rank, str(expect["cuda"])),
        _summarise_library,
    )


def _library_problems(rank: LibraryRank, cuda: str) -> Iterator[str]:
    """Yield what is wrong with the NCCL libraries that are loaded."""
    libraries = rank["libraries"]
    if len(libraries) != 1:
        paths = listed([library["path"] for library in libraries]) or "none"
        yield f"{len(libraries)} NCCL libraries are loaded: {paths}"

    for library in libraries:
        path, running = library["path"], library["running"]
        owners = library["owners"]
        if len(owners) != 1:
            names = listed([f"{owner['name']} {owner['version']}" for owner in owners]) or "no distribution"
            yield f"{path} belongs to {names}"
        for owner in owners:
            # The wheel 2.27.5.1 holds what NCCL itself calls 2.27.5.
            names_of_version = (owner["version"].split("+")[0], ".".join(owner["version"].split(".")[:3]))
            if running not in names_of_version:
                yield f"NCCL {running} runs, {owner['name']} is {owner['version']}"
            if owner["as_recorded"] is not True:
                yield f"{path} is not the file that {owner['name']} {owner['version']} brought"

        made_for = library["built"].get("cuda", "")
        if made_for and made_for.split(".")[0] != cuda.split(".")[0]:
            yield f"NCCL {running} is made for CUDA {made_for}, torch for {cuda}"


def _summarise_library(ranks: Sequence[LibraryRank]) -> str:
    """Write which NCCL runs."""
    library = ranks[0]["libraries"][0]
    owner, cuda = library["owners"][0], library["built"].get("cuda")
    made_for = f" for CUDA {cuda}" if cuda else ""
    return f"NCCL {library['running']}{made_for} runs, from {owner['name']} {owner['version']}"


class TransportExpect(SettingsExpect):
    """`link`: nvlink, pcie, apart, or empty where the host could not tell: then the container's own view decides."""

    link: str


class TransportRank(Rank):
    """NCCL's connections by transport, variables that it took, and whether the driver lets GPUs reach each other."""

    peer_access: bool
    connections: Mapping[str, int]
    taken: Mapping[str, str]


class TransportEvidence(TypedDict):
    ranks: Sequence[TransportRank]


def judge_transport(_subject: str, expect: TransportExpect, evidence: TransportEvidence) -> Finding:
    """Judge that ranks use the best way that the host's GPUs have to each other.

    Beside NVLink, NCCL reaches from GPU to GPU across PCIe switches alone (src/graph/paths.cc, ncclTopoCheckP2p:
    PATH_PXB; farther for two GPUs beside an x86 processor of AMD): where a host bridge lies between, it goes through
    shared memory by design. NVML does not tell which, so both are right there.
    """
    link = expect.get("link", "")
    injected = expect.get("injected", {})
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: _transport_problems(rank, link, injected),
        lambda ranks: _summarise_transport(ranks, link),
    )


def _transport_problems(rank: TransportRank, link: str, injected: Mapping[str, str]) -> Iterator[str]:
    """Yield what keeps a rank from the best way."""
    connections, has_access = rank["connections"], rank["peer_access"]
    if not connections:
        yield "NCCL's log names no transport"
    if link in ("nvlink", "pcie") and has_access is not True:
        yield "the host's GPUs reach each other, the container's do not"

    allowed = ("P2P",) if link == "nvlink" else ("P2P", "SHM")
    wrong = [way for way in connections if way.partition("/")[0] not in allowed]
    if wrong:
        variables = [f"{name}={value}" for name, value in rank["taken"].items() if name not in injected]
        why = f" ({listed(variables)})" if variables else ""
        yield f"ranks of one host talk over {listed(wrong)}{why}, {' or '.join(allowed)} is possible"


def _summarise_transport(ranks: Sequence[TransportRank], link: str) -> str:
    """Write which ways the ranks use."""
    ways: set[str] = set()
    for rank in ranks:
        ways.update(rank["connections"])
    return f"{len(ranks)} ranks talk over {listed(sorted(ways))} ({link or 'the host could not tell its links'})"


CLAIMS = {
    "collectives/exact": judge_collectives,
    "collectives/settings": judge_settings,
    "collectives/nccl": judge_library,
    "collectives/transport": judge_transport,
}
