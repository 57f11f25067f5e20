"""users: the image works for a user that it does not know, on a read-only root, without a network.

The run starts this check as such a user, because Kubernetes and OpenShift choose their own UIDs. Code that looks the
user up fails there (pytorch#140765), when it is called and not when it is imported.
"""

import contextlib
import getpass
import importlib
import math
import os
import pwd
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks import RunAs, Settings
from validate.claims import Claim
from validate.harness import seeding
from validate.harness.forked import measure_in_fork
from validate.judging import (
    Finding,
    failed,
    is_within,
    joined,
    listed,
    passed,
    root_cause,
    unproven,
)

SETTINGS = Settings(run_as=RunAs.ARBITRARY_UID)


class UserExpect(TypedDict):
    uid: int


class UserEvidence(TypedDict):
    """The conditions of the run, and each step's `answer` or `error`."""

    uid: int
    known: bool
    root_is_writable: bool
    interfaces: list[str]
    steps: Mapping[str, Mapping[str, Any]]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, UserEvidence]]:
    """Yield the evidence of each claim, each step from a fork."""
    for claim in claims:
        steps: dict[str, Mapping[str, Any]] = {
            "user name": measure_in_fork(lambda: {"answer": getpass.getuser()}),
            "home": measure_in_fork(_home),
            "temporary files": measure_in_fork(lambda: {"answer": tempfile.mkstemp()[1]}),
        }
        # Once, for both steps below. Errors are ignored here: each of them imports it again and reports them.
        with contextlib.suppress(Exception):
            importlib.import_module("torch")
        steps |= {"compiler caches": measure_in_fork(_caches), "training": measure_in_fork(_train)}
        evidence: UserEvidence = {
            "uid": os.getuid(),
            "known": os.getuid() in {user.pw_uid for user in pwd.getpwall()},
            "root_is_writable": os.access("/", os.W_OK)
            and not bool(os.statvfs("/").f_flag & os.ST_RDONLY),
            "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
            "steps": steps,
        }
        yield claim.subject, evidence


def _home() -> Mapping[str, Any]:
    """Write a file into the home."""
    home = Path.home()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        Path(folder, "file").write_text("written")
    return {"answer": str(home)}


def _caches() -> Mapping[str, Any]:
    """Write where torch.compile and Triton would put what they compile, when nothing in the environment says."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ.pop(name, None)
    folders = {"inductor": str(importlib.import_module("torch._inductor.codecache").cache_dir())}
    with contextlib.suppress(RuntimeError):  # there is no home
        folders["triton"] = str(Path.home() / ".triton" / "cache")
    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    return {"answer": folders}


def _train() -> Mapping[str, Any]:
    """Take a few steps of the smallest training: autograd's threads, an optimizer, a checkpoint written and read."""
    torch = importlib.import_module("torch")
    torch.manual_seed(seeding.seed_of_run())
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
    return {"answer": {"losses": losses, "checkpoint": same}}


def judge(_subject: str, expect: UserExpect, evidence: UserEvidence) -> Finding:
    """Judge the steps, and that the run's own conditions held."""
    conditions = []
    if evidence["uid"] != expect["uid"] or evidence["known"]:
        conditions.append(f"the probe ran as uid {evidence['uid']}, which the image knows")
    if evidence["root_is_writable"]:
        conditions.append("the root was writable")
    if set(evidence["interfaces"]) - {"lo"}:
        conditions.append(f"there was a network: {listed(evidence['interfaces'])}")
    problems = [
        f"{name}: {root_cause(step['error'])}"
        for name, step in evidence["steps"].items()
        if "error" in step
    ]
    training = evidence["steps"]["training"].get("answer")
    if training:
        losses, same = training["losses"], training["checkpoint"]
        if not (
            same and all(is_within(loss, math.inf) for loss in losses) and losses[-1] < losses[0]
        ):
            problems.append(f"training: losses {losses}, checkpoint {same}")
    if problems:
        return failed(f"for uid {evidence['uid']}: {joined(problems)}")
    if conditions:
        return unproven(joined(conditions))
    steps = listed(list(evidence["steps"]), limit=9)
    return passed(f"uid {evidence['uid']}, read-only root, no network: {steps} work")


CLAIMS = {"users/arbitrary-uid": judge}
