"""M1: collectives of whole numbers are exact. The probe also tells NCCL's version, its transport and its settings."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from validate.claims import Claim
from validate.contracts import NoEvidence
from validate.contracts.multigpu import (
    CollectivesResult,
    NcclLog,
    NcclOwner,
    NcclResult,
    NcclSettingsResult,
    RanksEvidence,
    TransportResult,
)
from validate.environment import installed, user_environment
from validate.probes.multigpu import _launch
from validate.probes.multigpu._worker import Worker

_SIZES = (1, 1027, 1 << 20)
"""Numbers a rank: NCCL takes other protocols for small, odd and large ones."""
_VARIABLES = re.compile(r"(TORCH_)?NCCL_(?!VERSION$)\w+")
"""NCCL_VERSION is what NVIDIA's CUDA images write down: NCCL does not read it."""
_OURS = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""What `environment` sets, so that NCCL tells what it does."""
_VERSION = re.compile(rb"NCCL version (\d+(?:\.\d+)+)\+cuda(\d+\.\d+)")
_LINES_SHOWN = 12
_Result: TypeAlias = "CollectivesResult | NcclSettingsResult | NcclResult | TransportResult"


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, RanksEvidence | NoEvidence]]:
    yield from _launch.measure(__name__, claims)


def environment(folder: Path) -> dict[str, str]:
    """A rank's own NCCL log, by process."""
    values = ("INFO", "INIT,ENV,P2P,SHM,NET,GRAPH,COLL", str(folder / "nccl.%p"))
    return dict(zip(_OURS, values, strict=True))


def rank(worker: Worker, claim: Claim) -> _Result:
    """Measure one subject."""
    subjects: Mapping[str, Callable[[Worker], _Result]] = {
        "collectives": _collectives,
        "settings": lambda _worker: settings(),
        "nccl": _library,
        "transport": _transport,
    }
    return subjects[claim.subject](worker)


# ---- whole numbers, exactly


def _collectives(worker: Worker) -> CollectivesResult:
    """Compare each collective at each size with the right result, and with that of swapped ranks (the control)."""
    operations: Mapping[str, Callable[[Worker, int], tuple[Any, Any, Any]]] = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "broadcast": _broadcast,
        "all_to_all": _all_to_all,
        "send and receive": _send_receive,
    }
    exact: dict[str, dict[str, bool]] = {}
    controls: dict[str, dict[str, bool]] = {}
    for name, operation in operations.items():
        for size in _SIZES:
            found, wanted, other = operation(worker, size)
            exact.setdefault(name, {})[str(size)] = bool((found == wanted).all())
            controls.setdefault(name, {})[str(size)] = bool((found == other).all())
    return {"exact": exact, "controls": controls}


def _data(worker: Worker, rank_: int, size: int, step: int = 0) -> Any:
    """Whole numbers that differ by rank and by place."""
    index = worker.torch.arange(size, device=worker.device, dtype=worker.torch.int64)
    return index * 1_000_003 + (rank_ + 1) * 7_919_000_000_019 + step * 104_729


def _next(worker: Worker, rank_: int) -> int:
    return (rank_ + 1) % worker.ranks


def _all_reduce(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    found = _data(worker, worker.rank, size)
    worker.distributed.all_reduce(found)
    total = sum(_data(worker, one, size) for one in range(worker.ranks))
    return found, total, _data(worker, worker.rank, size) * worker.ranks


def _all_gather(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    torch = worker.torch
    found = torch.empty(worker.ranks * size, device=worker.device, dtype=torch.int64)
    worker.distributed.all_gather_into_tensor(found, _data(worker, worker.rank, size))
    parts = [_data(worker, one, size) for one in range(worker.ranks)]
    return found, torch.cat(parts), torch.cat([*parts[1:], parts[0]])


def _reduce_scatter(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    torch = worker.torch
    found = torch.empty(size, device=worker.device, dtype=torch.int64)
    mine = torch.cat([_data(worker, worker.rank, size, step) for step in range(worker.ranks)])
    worker.distributed.reduce_scatter_tensor(found, mine)

    def part(of: int) -> Any:
        return sum(_data(worker, one, size, of) for one in range(worker.ranks))

    return found, part(worker.rank), part(_next(worker, worker.rank))


def _broadcast(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    """From the last rank."""
    found = _data(worker, worker.rank, size)
    worker.distributed.broadcast(found, src=worker.ranks - 1)
    return found, _data(worker, worker.ranks - 1, size), _data(worker, 0, size)


def _all_to_all(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    torch = worker.torch
    found = torch.empty(worker.ranks * size, device=worker.device, dtype=torch.int64)
    worker.distributed.all_to_all_single(
        found, torch.cat([_data(worker, worker.rank, size, step) for step in range(worker.ranks)])
    )
    wanted = torch.cat([_data(worker, one, size, worker.rank) for one in range(worker.ranks)])
    other = torch.cat([_data(worker, worker.rank, size, step) for step in range(worker.ranks)])
    return found, wanted, other


def _send_receive(worker: Worker, size: int) -> tuple[Any, Any, Any]:
    """Around the ring: to the next rank, from the one before."""
    distributed, before = worker.distributed, (worker.rank - 1) % worker.ranks
    mine = _data(worker, worker.rank, size)
    found = worker.torch.empty_like(mine)
    pair = [
        distributed.P2POp(distributed.isend, mine, _next(worker, worker.rank)),
        distributed.P2POp(distributed.irecv, found, before),
    ]
    for work in distributed.batch_isend_irecv(pair):
        work.wait()
    return found, _data(worker, before, size), mine


# ---- what changes how NCCL works


def settings() -> NcclSettingsResult:
    """Variables of the image (and of the trial) for NCCL, and the lines of the files it reads settings from."""
    given = user_environment.recorded().environ
    places = ["/etc/nccl.conf", str(Path(given.get("HOME", "/root"), ".nccl.conf")), given.get("NCCL_CONF_FILE", "")]
    return {
        "variables": {name: value for name, value in sorted(given.items()) if _VARIABLES.fullmatch(name)},
        "files": {place: _settings_in(Path(place)) for place in places if place and Path(place).is_file()},
    }


def _settings_in(file: Path) -> list[str]:
    lines = (line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


# ---- which NCCL


def _library(worker: Worker) -> NcclResult:
    """The NCCL that this process has mapped: its own version, the CUDA it was built for, whose file it is."""
    files = mapped("libnccl")
    owners = installed.owners(installed.distributions(sys.path))
    return {
        "cuda": str(worker.torch.version.cuda),
        "libraries": [
            {
                "path": file,
                "running": running(file),
                "built": built(Path(file).read_bytes()),
                "owners": [_owner(owner, file) for owner in owners.get(file, [])],
            }
            for file in files
        ],
    }


def mapped(stem: str) -> list[str]:
    """Files of a library that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return sorted({parts[5] for line in lines if len(parts := line.split(None, 5)) == 6 and f"/{stem}.so" in parts[5]})


def running(file: str) -> str:
    """What the library itself answers: 22809 is 2.28.9."""
    number = ctypes.c_int()
    ctypes.CDLL(file).ncclGetVersion(ctypes.byref(number))
    return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


def built(content: bytes) -> dict[str, str]:
    """Version and CUDA as they were compiled into it; empty where it does not say."""
    found = _VERSION.search(content)
    return {"version": found[1].decode(), "cuda": found[2].decode()} if found else {}


def _owner(owner: installed.Distribution, file: str) -> NcclOwner:
    recorded = next(entry.sha256 for entry in owner.entries or () if entry.path == file)
    digest = base64.urlsafe_b64encode(hashlib.sha256(Path(file).read_bytes()).digest()).decode().rstrip("=")
    return {"name": owner.name, "version": owner.version, "as_recorded": digest == recorded}


# ---- over which transport


def _transport(worker: Worker) -> TransportResult:
    """What NCCL's own log of this process says, and whether the driver lets the GPUs reach each other."""
    cuda = importlib.import_module("torch.cuda")
    others = [one for one in range(worker.ranks) if one != worker.rank]
    access = all(cuda.can_device_access_peer(worker.rank, one) for one in others)
    log = worker.folder / f"nccl.{os.getpid()}"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return {"peer_access": access, **parsed(text)}


def parsed(log: str) -> NcclLog:
    """NCCL's INFO log: connections by transport, variables that it took from somewhere, its version."""
    connections = re.findall(r"(?:Channel|\[\d+\]) .*? via ([A-Z][A-Za-z0-9]*(?:/[A-Za-z]+)*)", log)
    lines = [line.strip() for line in log.splitlines() if " via " in line]
    return {
        "connections": {way: connections.count(way) for way in sorted(set(connections))},
        "taken": dict(re.findall(r"(NCCL_\w+) set (?:by environment )?to (\S+?)\.?(?:\s|$)", log)),
        "versions": sorted(set(re.findall(r"NCCL version (\S+)", log))),
        "lines": lines[:_LINES_SHOWN],
    }
