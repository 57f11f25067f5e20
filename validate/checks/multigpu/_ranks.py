"""What checks of several GPUs share: device and process group, small seeded models, comparison of results; what a rank
yields, and that each rank must have done well."""

from __future__ import annotations

import datetime
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from validate.harness import seeding
from validate.judging import (
    RULE_T,
    Finding,
    backward,
    cause,
    failed,
    is_between,
    is_beyond,
    joined,
    listed,
    passed,
    scientific,
)

SEED = seeding.seed_of_run()
STEPS, WIDTH, BATCH = 3, 64, 16
"""Multiples of 16, as products in FP8 ask of every dimension."""
TIMEOUT_SECONDS = 90
"""Of a collective, and of joining. NCCL's watchdog ends a rank that waits longer. Beside load one rank may be far
behind another; of one that died torchrun tells at once, so only those that hang take as long.
"""
SCALE = 1.01
"""A result scaled so must be told apart."""
BACKENDS: Mapping[str, str] = {"cuda": "nccl", "cpu": "gloo"}


@dataclass(frozen=True)
class Worker:
    """One rank's place."""

    torch: Any
    rank: int
    ranks: int
    device: Any
    folder: Path
    """Shared by all ranks."""

    @classmethod
    def joined(cls, kind: str, folder: Path) -> Worker:
        """Take the GPU of this rank's number (or the CPU) and join the process group."""
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
        if kind == "cuda":
            torch.cuda.set_device(device)
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        distributed.init_process_group(
            BACKENDS[kind],
            timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS),
            **({"device_id": device} if kind == "cuda" else {}),
        )
        return cls(torch=torch, rank=rank, ranks=ranks, device=device, folder=folder)

    @property
    def distributed(self) -> Any:
        return importlib.import_module("torch.distributed")

    def device_facts(self) -> Device:
        """Return where this rank computed, and through which backend it talked."""
        facts: Device = {
            "type": self.device.type,
            "backend": str(self.distributed.get_backend()),
            "torch": self.torch.__version__,
        }
        if self.device.type != "cuda":
            return facts
        properties = self.torch.cuda.get_device_properties(self.device)
        return {
            **facts,
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "uuid": str(getattr(properties, "uuid", self.device.index)),
        }

    def mesh(self, shape: Sequence[int] | None = None, names: Sequence[str] = ("ranks",)) -> Any:
        """A device mesh; one dimension over all ranks unless told otherwise."""
        build = importlib.import_module("torch.distributed.device_mesh").init_device_mesh
        return build(self.device.type, tuple(shape or (self.ranks,)), mesh_dim_names=tuple(names))

    def model(self, seed: int = SEED) -> Any:
        """A residual network, float32, on this rank's device: the same weights on every rank."""
        torch = self.torch

        class Block(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is known at run time alone
            def __init__(self) -> None:
                super().__init__()
                self.norm = torch.nn.LayerNorm(WIDTH)
                self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
                self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

            def forward(self, x: Any) -> Any:
                return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

        torch.manual_seed(seed)
        return torch.nn.Sequential(Block(), Block()).to(self.device)

    def batch(self, rank: int, step: int = 0) -> Any:
        """The data of a rank in a step: other data for each."""
        generator = self.torch.Generator().manual_seed(SEED + 1000 * step + rank)
        return self.torch.randn(BATCH, WIDTH, generator=generator).to(self.device)

    def everything(self, step: int = 0) -> Any:
        """The data of all ranks, for one process alone."""
        return self.torch.cat([self.batch(rank, step) for rank in range(self.ranks)])

    def pass_on(self, mine: Any, given: Any) -> None:
        """Around the ring: `mine` to the next rank, into `given` what the one before has."""
        distributed, after, before = (
            self.distributed,
            (self.rank + 1) % self.ranks,
            (self.rank - 1) % self.ranks,
        )
        pair = [
            distributed.P2POp(distributed.isend, mine, after),
            distributed.P2POp(distributed.irecv, given, before),
        ]
        for work in distributed.batch_isend_irecv(pair):
            work.wait()

    def same_everywhere(self, tensors: Sequence[Any]) -> bool:
        """Whether every rank holds the same bits."""
        digest = importlib.import_module("hashlib").sha256()
        for one in tensors:
            digest.update(one.detach().cpu().contiguous().view(self.torch.uint8).numpy().tobytes())
        found: list[Any] = [None] * self.ranks
        self.distributed.all_gather_object(found, digest.hexdigest())
        return len(set(found)) == 1


def loss_of(output: Any) -> Any:
    """Every output and its sign matter."""
    return (output.float() - 1).square().mean()


def gradients(model: Any) -> dict[str, Any]:
    """Whole gradients by name: sharded ones are gathered."""
    return {
        name: whole(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def weights(model: Any) -> dict[str, Any]:
    return {name: whole(parameter.detach()) for name, parameter in model.named_parameters()}


def whole(tensor: Any) -> Any:
    """A sharded tensor gathered; any other as it is."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def compared(
    found: Mapping[str, Any], wanted: Mapping[str, Any], **controls: Mapping[str, Any]
) -> Comparison:
    """Return the relative error of all tensors together; of each control too, and of what was found 1 % larger."""
    scaled = {name: value * SCALE for name, value in found.items()}
    separate = {name.replace("_", " "): error(other, wanted) for name, other in controls.items()}
    return {
        "error": error(found, wanted),
        "controls": {f"scaled by {SCALE}": error(scaled, wanted), **separate},
    }


def error(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """In the 2-norm over all tensors, relative to what is wanted. Raises KeyError where one is missing."""
    if set(found) != set(wanted):
        raise KeyError(f"{sorted(set(found) ^ set(wanted))} is on one side alone")
    pairs = [
        (found[name].detach().cpu().double(), wanted[name].detach().cpu().double())
        for name in wanted
    ]
    away = sum(float((one - other).square().sum()) for one, other in pairs)
    return float((away / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5)


def trained(model: Any, optimizer: Any, batches: Sequence[Any]) -> list[float]:
    """One step a batch; the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model(batch))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def train_beside_one(
    worker: Worker, model: Any, optimizer: Callable[[Any], Any], named: Any = None
) -> dict[str, Comparison]:
    """Compare gradients of a step, and the weights after three more, beside one process with all data.

    The control is one process with this rank's data. `named`: the model whose parameters are compared, where it is
    wrapped.
    """
    named, alone, separate = named or model, worker.model(), worker.model()
    before = weights(alone)
    loss_of(separate(worker.batch(worker.rank))).backward()
    loss_of(model(worker.batch(worker.rank))).backward()
    loss_of(alone(worker.everything())).backward()
    found = compared(gradients(named), gradients(alone), not_exchanged=gradients(separate))
    optimizers = [optimizer(one.parameters()) for one in (named, alone)]
    trained(model, optimizers[0], [worker.batch(worker.rank, step) for step in range(STEPS)])
    trained(alone, optimizers[1], [worker.everything(step) for step in range(STEPS)])
    return {
        "gradients": found,
        "weights": compared(weights(named), weights(alone), untrained=before),
    }


class RanksExpect(TypedDict):
    """What every claim about several GPUs expects."""

    device: str  # `cuda`, or `cpu` in a rehearsal
    ranks: int | None  # None: the claims know no host


class Device(TypedDict, total=False):
    """Where a rank computed, and through which backend it talked; of a GPU also its name, capability and UUID."""

    type: str
    backend: str
    torch: str
    name: str
    capability: list[int]
    uuid: str


class Rank(TypedDict, total=False):
    """What every rank reports: where it computed, or what it raised."""

    device: Device
    error: Mapping[str, Any]


class Comparison(TypedDict, total=False):
    """Relative errors: of all tensors together, of each control, and perhaps of plain torch in the same dtype."""

    error: float
    controls: Mapping[str, float]
    plain_error: float


class ComputingRank(Rank, total=False):
    """What a rank computed, beside one process."""

    comparisons: Mapping[str, Comparison]
    facts: Mapping[str, object]
    figures: Mapping[str, float]


class RanksEvidence(TypedDict):
    ranks: Sequence[ComputingRank]


R = TypeVar("R", bound=Rank)


def judge_ranks(
    expect: RanksExpect,
    ranks: Sequence[R],
    problems_of: Callable[[R], Iterator[str]],
    summarise: Callable[[Sequence[R]], str],
) -> Finding:
    """Judge that every rank is in its place and has no problem of its own."""
    problems = list(_place_problems(expect, ranks))
    for number, rank in enumerate(ranks):
        if "error" in rank:
            problems.append(f"rank {number}: {cause(rank['error'])}")
        elif not problems:
            problems += [f"rank {number}: {problem}" for problem in problems_of(rank)]
    return failed(joined(problems)) if problems else passed(summarise(ranks))


def _place_problems(expect: RanksExpect, ranks: Sequence[Rank]) -> Iterator[str]:
    """Yield ranks that are missing, or not on a device of their own, of the kind that was asked for."""
    count, kind = expect["ranks"], expect["device"]
    if len(ranks) < 2 or (count and len(ranks) != count):
        yield f"{len(ranks)} ranks measured, {count or 'at least 2'} were asked for"

    devices = [rank["device"] for rank in ranks if "error" not in rank]
    backend = BACKENDS[kind]
    for device in devices:
        if device["type"] != kind or backend not in device["backend"]:
            yield f"ran on {device['type']} through {device['backend']}, not on {kind} through {backend}"
    if kind == "cuda" and len({device["uuid"] for device in devices}) != len(devices):
        yield "two ranks ran on one GPU"


SAME = 1e-6
"""The largest relative error of what is the same. Measured of gradients and of trained weights: 6e-8."""
SAME_AFTER_ADAMW = 1e-5
"""The same of weights that AdamW has trained: it divides by small numbers."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What each rank must have computed."""

    tolerance: Mapping[str, float | str] = field(default_factory=dict)
    """Comparison -> the largest relative error, or RULE_T. Every control must be beyond it."""
    facts: Mapping[str, object] = field(default_factory=dict)
    figures: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Figure -> the least and the most."""


def judge_computed(
    requirements: Requirements, expect: RanksExpect, evidence: RanksEvidence
) -> Finding:
    """Judge what ranks computed together, beside one process."""
    return judge_ranks(
        expect,
        evidence["ranks"],
        lambda rank: _problems_of(requirements, rank),
        lambda ranks: _summarise(requirements, ranks),
    )


def _problems_of(requirements: Requirements, rank: ComputingRank) -> Iterator[str]:
    """Yield what a rank computed wrongly."""
    for name, rule in requirements.tolerance.items():
        comparison = rank.get("comparisons", {}).get(name)
        if comparison is None:
            yield f"{name} were not compared"
        else:
            yield from _comparison_problems(name, rule, comparison)

    for name, value in requirements.facts.items():
        measured = rank.get("facts", {}).get(name)
        if measured != value:
            yield f"{name}: {measured!r}, not {value!r}"

    for name, (least, most) in requirements.figures.items():
        figure = rank.get("figures", {}).get(name)
        if not is_between(figure, least, most):
            yield f"{name} is {scientific(figure)}, not between {scientific(least)} and {scientific(most)}"


def _comparison_problems(name: str, rule: float | str, comparison: Comparison) -> Iterator[str]:
    """Yield an error that is too large, and controls that the tolerance lets pass."""
    tolerance = backward(comparison["plain_error"]) if rule == RULE_T else float(rule)
    if not is_between(comparison["error"], 0, tolerance):
        yield f"{name} are off by {scientific(comparison['error'])}, at most {scientific(tolerance)} is allowed"
    if not comparison["controls"]:
        yield f"{name} have no control"
    for control, value in comparison["controls"].items():
        if not is_beyond(value, tolerance):
            yield f"control: {name} {control} are off by {scientific(value)}, which the tolerance lets pass"


def _summarise(requirements: Requirements, ranks: Sequence[ComputingRank]) -> str:
    """Write what the ranks computed: `2 ranks: gradients within 6.0e-08, sharded`."""
    parts = []
    for name in requirements.tolerance:
        worst = max(rank["comparisons"][name]["error"] for rank in ranks)
        parts.append(f"{name} within {worst:.1e}")
    parts += [f"{name} {scientific(ranks[0]['figures'][name])}" for name in requirements.figures]
    for name, value in requirements.facts.items():
        if isinstance(value, bool):
            parts.append(name if value else f"not {name}")
        elif isinstance(value, list):
            parts.append(f"{name} {listed([str(item) for item in value])}")
        else:
            parts.append(f"{name} {value}")
    return f"{len(ranks)} ranks: {listed(parts, limit=6)}"
