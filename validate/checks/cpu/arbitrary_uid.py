"""users: check that the image works for an unknown user, on a read-only root, without a network.

The validation run starts this check as such a user, because Kubernetes and OpenShift choose their
own UIDs. Code that looks the user up fails there (pytorch#140765), when it is called and not when
it is imported.
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
from validate.claims import ARBITRARY_UID, Claim
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
from validate.next_steps import REPORT, RUN_AS_ASKED

SETTINGS = Settings(run_as=RunAs.ARBITRARY_UID)


class UserExpect(TypedDict):
    """The user that the container must run as."""

    uid: int


class UserEvidence(TypedDict):
    """How the container was started, and what worked in it."""

    uid: int
    known: bool  # the image has a user of this ID
    root_is_writable: bool  # the root of the file system
    interfaces: list[str]  # of the network: `lo` alone if there is none
    steps: Mapping[str, Mapping[str, Any]]  # step -> {answer: what it gave}, or {error}


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, UserEvidence]]:
    """Try what a user whom the image does not know can do in this container, for each claim.

    Yields the claim's subject with the results: `{"answer": ...}` of each step, or
    `{"error": ...}` if it raised. Each step runs in a fork, so that it finds nothing of what
    another one has set up.
    """
    for claim in claims:
        steps: dict[str, Mapping[str, Any]] = {
            "user name": measure_in_fork(lambda: {"answer": getpass.getuser()}),
            "home": measure_in_fork(write_into_home),
            "temporary files": measure_in_fork(write_temporary_file),
        }
        # Imported once, for both steps below. An error is ignored here: each of them imports torch
        # again and reports it.
        with contextlib.suppress(Exception):
            importlib.import_module("torch")
        steps["compiler caches"] = measure_in_fork(write_to_compiler_caches)
        steps["training"] = measure_in_fork(train)

        # The conditions under which the container had to be started, for the judge to check.
        is_read_only = bool(os.statvfs("/").f_flag & os.ST_RDONLY)
        evidence: UserEvidence = {
            "uid": os.getuid(),
            "known": os.getuid() in {user.pw_uid for user in pwd.getpwall()},
            "root_is_writable": os.access("/", os.W_OK) and not is_read_only,
            "interfaces": sorted(path.name for path in Path("/sys/class/net").glob("*")),
            "steps": steps,
        }
        yield claim.subject, evidence


def write_into_home() -> Mapping[str, Any]:
    """Write a file into the user's home, and return the home as `answer`."""
    home = Path.home()
    with tempfile.TemporaryDirectory(dir=home) as folder:
        Path(folder, "file").write_text("written")
    return {"answer": str(home)}


def write_temporary_file() -> Mapping[str, Any]:
    """Make a temporary file, and return its path as `answer`."""
    _descriptor, path = tempfile.mkstemp()
    return {"answer": path}


def write_to_compiler_caches() -> Mapping[str, Any]:
    """Write to the cache folders that torch.compile and Triton use by default.

    Returns the folders as `answer`; raises OSError if one can't be written to.
    """
    # The suite lets these variables name a folder of the probe. Without them, the defaults are
    # used.
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ.pop(name, None)
    folders = {"inductor": str(importlib.import_module("torch._inductor.codecache").cache_dir())}
    # Path.home raises where there is no home: the step `home` reports that.
    with contextlib.suppress(RuntimeError):
        folders["triton"] = str(Path.home() / ".triton" / "cache")

    for folder in folders.values():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    return {"answer": folders}


def train() -> Mapping[str, Any]:
    """Take five steps of AdamW with a linear layer, save a checkpoint, and load it again.

    The layer learns to sum up its inputs. Returns as `answer` the losses, and whether the
    checkpoint has the same weights. This needs autograd's threads, an optimizer and a folder for
    temporary files.
    """
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
        loaded = torch.load(file.name, weights_only=True)
    is_same = all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    return {"answer": {"losses": losses, "checkpoint": is_same}}


def judge(_subject: str, expect: UserExpect, evidence: UserEvidence) -> Finding:
    """Pass if a user whom the image does not know could do all that was tried, such as training.

    Each step was tried in a container with a read-only root and without a network. UNPROVEN if all
    worked, but the container was started with more rights than that.
    """
    # A step that fails with more rights fails without them, too: so failures count in any case.
    problems = list(step_problems(evidence["steps"]))
    if problems:
        return failed(
            f"{joined(problems)} (tried as user {evidence['uid']}, whom the image does not know, "
            "in a container with a read-only root and without a network)"
        )

    wrong = list(describe_wrong_conditions(expect, evidence))
    if wrong:
        return unproven(joined(wrong), RUN_AS_ASKED)

    steps = listed(list(evidence["steps"]), limit=9)
    return passed(f"uid {evidence['uid']}, read-only root, no network: {steps} work")


def step_problems(steps: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each step that failed in the container of an unknown user.

    `steps` maps a step to its `answer`, or to the `error` that it raised. The answer of `training`
    is judged, too: all losses must be numbers, the last must be below the first, and the checkpoint
    must have the weights that were saved.
    """
    for name, step in steps.items():
        if "error" in step:
            yield f"the step {name!r} fails: {root_cause(step['error'])}"

    training = steps["training"].get("answer")
    if training:
        losses, is_same = training["losses"], training["checkpoint"]
        has_learned = losses[-1] < losses[0]
        are_finite = all(is_within(loss, math.inf) for loss in losses)
        if not (is_same and are_finite and has_learned):
            checkpoint = "has" if is_same else "does not have"
            yield f"training gives the losses {losses}, and its checkpoint {checkpoint} its weights"


def describe_wrong_conditions(expect: UserExpect, evidence: UserEvidence) -> Iterator[str]:
    """Yield in what the container differs from what the claim is about."""
    if evidence["uid"] != expect["uid"] or evidence["known"]:
        yield f"the container ran as user {evidence['uid']}, whom the image knows"
    if evidence["root_is_writable"]:
        yield "the container's root was writable"
    if set(evidence["interfaces"]) - {"lo"}:
        yield f"the container had a network: {listed(evidence['interfaces'])}"


CLAIMS = {"users/arbitrary-uid": judge}
NEXT_STEPS = {
    "users/arbitrary-uid": {
        "Permission denied": "add `chmod -R a+rX FOLDER` to the step of your Dockerfile that "
        "brings the file or folder that the reason names, and build the image again",
        "Read-only file system": "in your Dockerfile, set the variable or option that moves what "
        "the program writes to /tmp or to the home, and build the image again",
        "training gives": "validate again on another machine; if it fails in the same way, "
        f"{REPORT}",
        "": "look at the whole error in `docker run --rm -it --user "
        f"{ARBITRARY_UID}:{ARBITRARY_UID} --read-only --network none --tmpfs /tmp:mode=1777 "
        "--tmpfs /home/trainer:mode=1777 IMAGE sh`; if a package does not find the user, install a "
        "newer release of it in your Dockerfile, and build the image again",
    }
}
