"""C8: the image works for a user that it does not know, on a read-only root, without a network.

The run starts this check as such a user, because Kubernetes and OpenShift choose their own UIDs. Code that looks the
user up fails there (pytorch#140765), when it is called and not when it is imported.
"""

from __future__ import annotations

import getpass
import importlib
import math
import os
import pwd
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from validate.claims import Claim
from validate.evidence import Measured
from validate.harness.forked import attempt, in_fork
from validate.judging import Finding, failed, is_within, joined, listed, passed, root_cause, unproven

RUN_AS = "arbitrary UID"


class ArbitraryUidExpect(TypedDict):
    uid: int


class Step(Measured, total=False):
    answer: object


class Trained(TypedDict):
    losses: list[float]
    checkpoint: bool


class ArbitraryUidEvidence(TypedDict):
    uid: int
    known: bool
    root_is_writable: bool
    interfaces: list[str]
    steps: dict[str, Step]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ArbitraryUidEvidence]]:
    for claim in claims:
        alone: Mapping[str, Callable[[], Step]] = {
            "user name": lambda: {"answer": getpass.getuser()},
            "home": _home,
            "temporary files": _temporary,
        }
        with_torch: Mapping[str, Callable[[], Step]] = {"compiler caches": _caches, "training": _train}
        steps = {name: in_fork(step) for name, step in alone.items()}
        attempt(_import_torch)  # once, for both; what it raises, each of them raises
        steps |= {name: in_fork(step) for name, step in with_torch.items()}
        yield (
            claim.subject,
            {
                "uid": os.getuid(),
                "known": _known(os.getuid()),
                "root_is_writable": os.access("/", os.W_OK) and not bool(os.statvfs("/").f_flag & os.ST_RDONLY),
                "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
                "steps": steps,
            },
        )


def _known(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _home() -> Step:
    home = Path.home()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        Path(folder, "file").write_text("written")
    return {"answer": str(home)}


def _temporary() -> Step:
    with tempfile.NamedTemporaryFile() as file:
        return {"answer": file.name}


def _caches() -> Step:
    """Where torch.compile and Triton would put what they compile, when nothing in the environment says."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ.pop(name, None)
    inductor = importlib.import_module("torch._inductor.codecache").cache_dir()
    triton = attempt(_triton_cache)
    folders = {"inductor": str(inductor), **({"triton": triton["folder"]} if "folder" in triton else {})}
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    return {"answer": folders}


class _Cache(Measured, total=False):
    folder: str


def _triton_cache() -> _Cache:
    return {"folder": str(Path.home() / ".triton" / "cache")}


def _import_torch() -> Measured:
    importlib.import_module("torch")
    return {}


def _train() -> Step:
    """A few steps of the smallest training: autograd's threads, an optimizer, a checkpoint written and read."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.randn(32, 8)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save(model.state_dict(), file.name)
        again = torch.load(file.name, weights_only=True)
    same = all(torch.equal(again[name], value) for name, value in model.state_dict().items())
    trained: Trained = {"losses": losses, "checkpoint": same}
    return {"answer": trained}


def judge(_subject: str, expect: ArbitraryUidExpect, evidence: ArbitraryUidEvidence) -> Finding:
    """C8. expect: {uid}. That the run's own conditions held is part of what is judged."""
    conditions = []
    if evidence["uid"] != expect["uid"] or evidence["known"]:
        conditions.append(f"the probe ran as uid {evidence['uid']}, which the image knows")
    if evidence["root_is_writable"]:
        conditions.append("the root was writable")
    if set(evidence["interfaces"]) - {"lo"}:
        conditions.append(f"there was a network: {listed(evidence['interfaces'])}")
    problems = [f"{name}: {root_cause(step['error'])}" for name, step in evidence["steps"].items() if "error" in step]
    training = cast("Trained | None", evidence["steps"]["training"].get("answer"))
    if training and not (training["checkpoint"] and _falls(training["losses"])):
        problems.append(f"training: losses {training['losses']}, checkpoint {training['checkpoint']}")
    if problems:
        return failed(f"for uid {evidence['uid']}: {joined(problems)}")
    if conditions:
        return unproven(joined(conditions))
    steps = listed(list(evidence["steps"]), limit=9)
    return passed(f"uid {evidence['uid']}, read-only root, no network: {steps} work")


def _falls(losses: Sequence[float]) -> bool:
    return all(is_within(loss, math.inf) for loss in losses) and losses[-1] < losses[0]


CLAIMS = {"C8 arbitrary UID": judge}
