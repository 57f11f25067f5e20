"""Helpers of the multi-GPU checks: join the ranks, compare tensors, judge what ranks report.

A rank is one process of several that train together, each on a GPU of its own. Every check has one
rank function, which measures on each rank, and one judge, which reads what all ranks reported.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from validate.harness import seeding
from validate.judging import (
    PROVES_NOTHING,
    RULE_T,
    Finding,
    backward_tolerance,
    cause,
    failed,
    is_between,
    is_beyond,
    joined,
    listed,
    passed,
    scientific,
)
from validate.next_steps import pin
from validate.nodes import NODE_VARIABLE

SEED = seeding.seed_of_run()
STEPS = 3
WIDTH, BATCH = 64, 16
"""Features of the small model, and rows of a batch. FP8 products need multiples of 16."""
TIMEOUT_SECONDS = 90
"""The limit of one collective, and of joining the group. NCCL's watchdog ends a rank that waits
longer. On a busy machine one rank may be far behind another. torchrun reports a rank that died at
once, so only ranks that hang wait this long.
"""
SCALE = 1.01
"""Every comparison must notice a result that is wrong by this factor."""
BACKENDS: Mapping[str, str] = {"cuda": "nccl", "cpu": "gloo"}


class Device(TypedDict, total=False):
    """Where a rank computed, through which backend, and on which GPU if it was one."""

    type: str
    backend: str
    torch: str
    name: str
    capability: list[int]
    uuid: str
    node: int


class Comparison(TypedDict, total=False):
    """Relative errors of a set of tensors against the right result."""

    error: float
    controls: Mapping[str, float]  # what makes a result wrong on purpose -> its error
    plain_error: float  # of plain torch in the same dtype; only where RULE_T judges


@dataclass(frozen=True)
class Worker:
    """One rank of a launch, with its device and the folder that all ranks share."""

    torch: Any
    rank: int
    world_size: int
    device: Any
    folder: Path

    @classmethod
    def join(cls, device_type: str, folder: Path) -> Worker:
        """Take this rank's device, join the process group of all ranks, and return the worker.

        `device_type` is "cuda", for the GPU whose index is the local rank, or "cpu". The launcher
        must have set RANK, LOCAL_RANK and WORLD_SIZE, as torchrun does. Raises what
        `init_process_group` raises if the other ranks do not join in time.
        """
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
        rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        group_options: dict[str, Any] = {
            "backend": BACKENDS[device_type],
            "timeout": datetime.timedelta(seconds=TIMEOUT_SECONDS),
        }
        if device_type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            # TF32 rounds more coarsely than the comparisons allow.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
            group_options["device_id"] = device
        else:
            device = torch.device(device_type)
        distributed.init_process_group(**group_options)
        return cls(torch=torch, rank=rank, world_size=world_size, device=device, folder=folder)

    @property
    def distributed(self) -> Any:
        """The module torch.distributed."""
        return importlib.import_module("torch.distributed")

    def device_facts(self) -> Device:
        """Return where this rank computes and through which backend it talks to the others.

        On a GPU, also its model, compute capability and UUID, which tells two GPUs apart. With two
        nodes, also the number of this rank's node.
        """
        facts: Device = {
            "type": self.device.type,
            "backend": str(self.distributed.get_backend()),
            "torch": self.torch.__version__,
        }
        if self.device.type == "cuda":
            properties = self.torch.cuda.get_device_properties(self.device)
            facts["name"] = properties.name
            facts["capability"] = [properties.major, properties.minor]
            # Older releases of torch do not know the UUID.
            facts["uuid"] = str(getattr(properties, "uuid", self.device.index))
        if NODE_VARIABLE in os.environ:
            facts["node"] = int(os.environ[NODE_VARIABLE])
        return facts

    def make_mesh(
        self, shape: Sequence[int] | None = None, names: Sequence[str] = ("ranks",)
    ) -> Any:
        """Return a device mesh of this shape; by default one dimension with all ranks."""
        init_device_mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
        if shape is None:
            shape = (self.world_size,)
        return init_device_mesh(self.device.type, tuple(shape), mesh_dim_names=tuple(names))

    def make_model(self, seed: int = SEED) -> Any:
        """Return a float32 model of two residual blocks on this rank's device.

        The same seed gives the same weights on every rank. The model maps [rows, WIDTH] to
        [rows, WIDTH].
        """
        torch = self.torch

        class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # imported late
            def __init__(self) -> None:
                super().__init__()
                self.norm = torch.nn.LayerNorm(WIDTH)
                self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
                self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

            def forward(self, states: Any) -> Any:
                hidden = torch.nn.functional.gelu(self.up(self.norm(states)))
                return states + self.down(hidden)

        torch.manual_seed(seed)
        return torch.nn.Sequential(Block(), Block()).to(self.device)

    def make_batch(self, rank: int, step: int = 0) -> Any:
        """Return the inputs [BATCH, WIDTH] of a rank in a step. Each rank and step has its own."""
        generator = self.torch.Generator().manual_seed(SEED + 1000 * step + rank)
        return self.torch.randn(BATCH, WIDTH, generator=generator).to(self.device)

    def make_batch_of_all_ranks(self, step: int = 0) -> Any:
        """Return the inputs of all ranks in a step, as one batch for a single process."""
        return self.torch.cat([self.make_batch(rank, step) for rank in range(self.world_size)])

    def send_around_ring(self, sent: Any, received: Any, distance: int = 1) -> None:
        """Send a tensor to the next rank and write the previous rank's tensor into `received`.

        `distance`: how many ranks further the next one is.
        """
        distributed = self.distributed
        next_rank = (self.rank + distance) % self.world_size
        previous_rank = (self.rank - distance) % self.world_size
        operations = [
            distributed.P2POp(distributed.isend, sent, next_rank),
            distributed.P2POp(distributed.irecv, received, previous_rank),
        ]
        for work in distributed.batch_isend_irecv(operations):
            work.wait()

    def are_same_on_all_ranks(self, tensors: Sequence[Any]) -> bool:
        """Return whether these tensors have the same bits in all ranks.

        Ranks are processes that train together. All of them must call this at the same time.
        """
        digest = hashlib.sha256()
        for tensor in tensors:
            bits = tensor.detach().cpu().contiguous().view(self.torch.uint8)
            digest.update(bits.numpy().tobytes())

        # all_gather_object puts the digest of each rank into the list.
        digests: list[Any] = [None] * self.world_size
        self.distributed.all_gather_object(digests, digest.hexdigest())
        return len(set(digests)) == 1


def compute_loss(output: Any) -> Any:
    """Return the loss of a model's output: the mean square distance from 1.

    Every value of the output changes it, and so does its sign.
    """
    return (output.float() - 1).square().mean()


def gather_gradients(model: Any) -> dict[str, Any]:
    """Return copies of the gradients of all trainable parameters by name, sharded ones as whole."""
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            gradients[name] = gather_tensor(parameter.grad)
    return gradients


def gather_weights(model: Any) -> dict[str, Any]:
    """Return copies of all parameters of a model by name, sharded ones as whole tensors."""
    return {name: gather_tensor(parameter.detach()) for name, parameter in model.named_parameters()}


def gather_tensor(tensor: Any) -> Any:
    """Return a detached copy of a tensor. A sharded one (DTensor) is gathered from all ranks."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    return tensor.detach().clone()


def compare_tensors(
    measured: Mapping[str, Any],
    expected: Mapping[str, Any],
    controls: Mapping[str, Mapping[str, Any]] | None = None,
) -> Comparison:
    """Return the relative error of measured tensors, and of controls, against the expected ones.

    A control is a set of tensors of the same names that is known to be wrong: the judge's tolerance
    must not let it pass. Every comparison has one control, the measured tensors times SCALE;
    `controls` are further ones, by what makes them wrong.
    """
    scaled = {name: tensor * SCALE for name, tensor in measured.items()}
    control_errors = {f"scaled by {SCALE}": relative_error(scaled, expected)}
    for control, tensors in (controls or {}).items():
        control_errors[control] = relative_error(tensors, expected)
    return {"error": relative_error(measured, expected), "controls": control_errors}


def relative_error(measured: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return the 2-norm of the differences of all tensors over the 2-norm of the expected ones.

    Raises KeyError if a tensor is in only one of the two mappings, and ZeroDivisionError if all
    expected numbers are 0.
    """
    if set(measured) != set(expected):
        raise KeyError(f"{sorted(set(measured) ^ set(expected))} is on one side alone")
    squared_difference = 0.0
    squared_size = 0.0
    for name, expected_tensor in expected.items():
        measured_values = measured[name].detach().cpu().double()
        expected_values = expected_tensor.detach().cpu().double()
        squared_difference += float((measured_values - expected_values).square().sum())
        squared_size += float(expected_values.square().sum())
    return float((squared_difference / squared_size) ** 0.5)


def train(model: Any, optimizer: Any, batches: Sequence[Any]) -> list[float]:
    """Train a model in place, one optimizer step for each batch, and return the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = compute_loss(model(batch))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compare_training(
    worker: Worker,
    model: Any,
    make_optimizer: Callable[[Any], Any],
    unwrapped_model: Any = None,
) -> dict[str, Comparison]:
    """Compare how a parallel model trains with how one process trains on the data of all ranks.

    Return two comparisons: "gradients", of one backward pass, with the gradients of this rank's
    data alone as the control; and "weights", after STEPS optimizer steps, with the untrained
    weights as the control.

    `model` starts with the weights of `worker.make_model()`. If it is a wrapper such as DDP,
    `unwrapped_model` is the model inside, whose parameters are compared. `make_optimizer` takes a
    model's parameters.
    """
    if unwrapped_model is None:
        unwrapped_model = model
    single = worker.make_model()
    isolated = worker.make_model()
    untrained_weights = gather_weights(single)

    # The loss is a mean and all batches have the same size, so the mean of the ranks' gradients
    # must be the gradient of all data at once.
    compute_loss(isolated(worker.make_batch(worker.rank))).backward()
    compute_loss(model(worker.make_batch(worker.rank))).backward()
    compute_loss(single(worker.make_batch_of_all_ranks())).backward()
    gradients = compare_tensors(
        gather_gradients(unwrapped_model),
        gather_gradients(single),
        {"not exchanged": gather_gradients(isolated)},
    )

    # `make_batch_of_all_ranks` joins what `make_batch` gives each rank, so both models train on the
    # same data.
    optimizer = make_optimizer(unwrapped_model.parameters())
    single_optimizer = make_optimizer(single.parameters())
    own_batches = [worker.make_batch(worker.rank, step) for step in range(STEPS)]
    train(model, optimizer, own_batches)
    all_batches = [worker.make_batch_of_all_ranks(step) for step in range(STEPS)]
    train(single, single_optimizer, all_batches)
    trained_weights = compare_tensors(
        gather_weights(unwrapped_model), gather_weights(single), {"untrained": untrained_weights}
    )
    return {"gradients": gradients, "weights": trained_weights}


class RanksExpect(TypedDict, total=False):
    """What every claim about several GPUs expects."""

    device: str  # `cuda`, or `cpu` in a rehearsal
    ranks: int | None  # how many; None: the claims were written without a host
    nodes: int  # on how many nodes they run, as many on each; missing: on one
    machines: int  # on how many machines the nodes are; missing: on one


class Rank(TypedDict, total=False):
    """What every rank reports: where it computed, or what it raised."""

    device: Device
    error: Mapping[str, Any]


class ComputingRank(Rank, total=False):
    """What a rank reports that computed something and compared it with one process."""

    comparisons: Mapping[str, Comparison]
    facts: Mapping[str, object]
    figures: Mapping[str, float]


class RanksEvidence(TypedDict):
    """The reports of all ranks, in the order of their numbers."""

    ranks: Sequence[ComputingRank]


RankT = TypeVar("RankT", bound=Rank)


def judge_ranks(
    expect: RanksExpect,
    ranks: Sequence[RankT],
    find_problems: Callable[[RankT], Iterator[str]],
    summarise: Callable[[Sequence[RankT]], str],
) -> Finding:
    """Judge the reports of all ranks: PASS if all ran where they should and none has a problem.

    `find_problems` yields what is wrong with one rank's report; it is not asked about a rank that
    raised an error. `summarise` writes the reason of a PASS.
    """
    problems = list(_find_placement_problems(expect, ranks))
    for number, rank in enumerate(ranks):
        if "error" in rank:
            problems.append(f"rank {number}: {cause(rank['error'])}")

    # What ranks measured says nothing if one of them ran in the wrong place or raised an error.
    if not problems:
        for number, rank in enumerate(ranks):
            problems += [f"rank {number}: {problem}" for problem in find_problems(rank)]
            # The others mostly have the same problems.
            if problems:
                break
    return failed(joined(problems)) if problems else passed(summarise(ranks))


def _find_placement_problems(expect: RanksExpect, ranks: Sequence[Rank]) -> Iterator[str]:
    """Yield a problem if ranks are missing, share a GPU, or ran on another device or node.

    A rank is one of the parallel processes, each on a GPU of its own (or all on the CPU, in a
    rehearsal). There must be as many as the claim says; if that is None, at least two. If the claim
    is about several nodes, each must have equally many. A rank that raised an error has reported no
    device.
    """
    expected_count = expect["ranks"]
    device_type = expect["device"]
    if len(ranks) < 2 or (expected_count and len(ranks) != expected_count):
        started = expected_count or "at least 2"
        yield f"of {started} processes (ranks) that were started, {len(ranks)} reported a result"

    devices = [rank["device"] for rank in ranks if "error" not in rank]
    backend = BACKENDS[device_type]
    for device in devices:
        if device["type"] != device_type or backend not in device["backend"]:
            actual = f"{device['type']} through {device['backend']}"
            yield f"a process (rank) ran on {actual}, not on {device_type} through {backend}"
    if device_type == "cuda" and len({device["uuid"] for device in devices}) != len(devices):
        yield "two processes (ranks) ran on one GPU"
    node_count = expect.get("nodes", 1)
    if node_count > 1 and len(devices) == len(ranks):
        counts = Counter(device.get("node") for device in devices)
        ranks_of_nodes = [counts[node] for node in range(node_count)]
        if ranks_of_nodes != [len(ranks) // node_count] * node_count:
            numbers = " and ".join(map(str, ranks_of_nodes))
            yield f"the {node_count} nodes had {numbers} ranks, and should have equally many"


ROUNDING_TOLERANCE = 1e-6
"""The largest relative error of two float32 results that differ only in the order of their sums.
Measured: 6e-8, of gradients and of trained weights."""
ADAMW_TOLERANCE = 1e-5
"""The same for weights that AdamW trained. It divides by small numbers, which enlarges errors."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What each rank must report for a claim to hold."""

    tolerance: Mapping[str, float | str] = field(default_factory=dict)
    """Comparison -> the largest relative error, or RULE_T. Each control must be beyond it."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Fact -> the value that it must have."""
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Figure -> the least and the largest value that it may have."""


NEXT_STEP = (
    "do not train in this way in this image until this passes: validate again on another machine; "
    f"if it fails there, too, {pin('another release of torch or torchao')}; if it passes there, "
    "have this machine's GPUs and the links between them looked at (`nvidia-smi topo -m`)"
)
"""What to do if parallel training does not compute what one process computes."""


def judge_requirements(
    requirements: Requirements, expect: RanksExpect, evidence: RanksEvidence
) -> Finding:
    """Pass if each rank (process that trains with the others) measured what a claim requires."""
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: describe_unmet_requirements(requirements, rank),
        lambda ranks: _summarise(requirements, ranks),
    )


def describe_unmet_requirements(requirements: Requirements, rank: ComputingRank) -> Iterator[str]:
    """Yield each comparison, fact and figure of a rank that is missing or not as required.

    A rank is one of the parallel processes; `rank` holds what it reported. `requirements` has by
    name the largest error of a comparison (`tolerance`), the value of a fact, and the least and the
    most of a figure.
    """
    for name, tolerance in requirements.tolerance.items():
        comparison = rank.get("comparisons", {}).get(name)
        if comparison is None:
            yield f"{name} were not compared with those of one process"
        else:
            yield from _find_comparison_problems(name, tolerance, comparison)

    for name, required_value in requirements.facts.items():
        value = rank.get("facts", {}).get(name)
        if value != required_value:
            yield f"{name!r} is {value!r}, and {required_value!r} is expected"

    for name, (least, most) in requirements.figures.items():
        figure = rank.get("figures", {}).get(name)
        if not is_between(figure, least, most):
            bounds = f"{scientific(least)} to {scientific(most)}"
            yield f"{name} is {scientific(figure)}, and should be {bounds}"


def _find_comparison_problems(
    name: str, tolerance: float | str, comparison: Comparison
) -> Iterator[str]:
    """Yield a problem if the error is too large, and for each control whose error is not.

    tolerance: the largest relative error; or RULE_T, which allows a small multiple of plain torch's
        error in the same dtype (`plain_error`).
    """
    if tolerance == RULE_T:
        largest_error = backward_tolerance(comparison["plain_error"])
    else:
        largest_error = float(tolerance)

    # NaN is not between any bounds.
    error = comparison["error"]
    if not is_between(error, 0, largest_error):
        allowed = f"at most {scientific(largest_error)} is allowed"
        yield f"{name} are off by {scientific(error)}, and {allowed}"
    if not comparison["controls"]:
        yield f"{PROVES_NOTHING}no {name} were made wrong on purpose and compared"
    for control, control_error in comparison["controls"].items():
        if not is_beyond(control_error, largest_error):
            off_by = f"off by {scientific(control_error)}"
            yield (
                f"{PROVES_NOTHING}{name} that are wrong on purpose ({control}) are {off_by}, and "
                "pass as right"
            )


def _summarise(requirements: Requirements, ranks: Sequence[ComputingRank]) -> str:
    """Write what all ranks measured as one line: `2 ranks: gradients within 6.0e-08, sharded`.

    Ranks are processes that train together. `requirements` names the errors, figures and facts that
    each of them measured. They have been judged before, and are right.
    """
    parts = []
    for name in requirements.tolerance:
        largest_error = max(rank["comparisons"][name]["error"] for rank in ranks)
        parts.append(f"{name} within {largest_error:.1e}")

    # Figures of the first rank stand for all: those of others are within the limits as well.
    for name in requirements.figures:
        parts.append(f"{name} {scientific(ranks[0]['figures'][name])}")

    # Facts are the same on all ranks, because they are as required.
    for name, value in requirements.facts.items():
        if isinstance(value, bool):
            parts.append(name if value else f"not {name}")
        elif isinstance(value, list):
            parts.append(f"{name} {listed([str(item) for item in value])}")
        else:
            parts.append(f"{name} {value}")
    return f"{len(ranks)} ranks: {listed(parts, limit=6)}"
