"""framework of the colossalai profile: it launches on one rank; its Booster and HybridAdam take the steps of plain
torch."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from validate.checks._adam import judge_adam
from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness import adam, drawn
from validate.harness.forked import asked, attempt, free_port
from validate.judging import Finding

_RATE = 0.1


class LaunchEvidence(TypedDict):
    """CUDA_DEVICE_MAX_CONNECTIONS as the image has it and after the launch, and how many ranks there are."""

    connections_before: str
    connections_after: str
    world: int


class BoosterEvidence(TypedDict):
    """How far a step's weights are from plain torch's, and from those before it."""

    deviation: float
    moved: float


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of the subjects asked for: colossalai launch, booster and hybrid-adam."""
    launched = attempt(_launch)
    measures: Mapping[str, Callable[[], Mapping[str, Any]]] = {
        "colossalai-launch": lambda: launched,
        # Without a launch there is nothing to boost: its error is the booster's, too.
        "colossalai-booster": lambda: launched if "error" in launched else _booster(),
        "colossalai-hybrid-adam": _hybrid_adam,
    }
    yield from asked(claims, measures)


def _launch() -> LaunchEvidence:
    """The variable as the image has it, and after ColossalAI has set its own."""
    before = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    colossalai = importlib.import_module("colossalai")
    colossalai.launch(rank=0, world_size=1, host="127.0.0.1", port=free_port(), backend="gloo")
    return {
        "connections_before": before,
        "connections_after": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "unset"),
        "world": int(importlib.import_module("torch.distributed").get_world_size()),
    }


def _booster() -> BoosterEvidence:
    """One SGD step of a boosted linear layer against the same step in plain torch."""
    torch = importlib.import_module("torch")
    plugin = importlib.import_module("colossalai.booster.plugin").TorchDDPPlugin()
    booster = importlib.import_module("colossalai.booster").Booster(plugin=plugin)
    torch.manual_seed(drawn.seed())
    plain, boosted = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
    boosted.load_state_dict(plain.state_dict())
    before, data = plain.weight.detach().clone(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(boosted.parameters(), lr=_RATE)
    model, optimizer, *_ = booster.boost(boosted, optimizer)
    booster.backward(model(data).square().mean(), optimizer)
    optimizer.step()
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=_RATE)
    plain(data).square().mean().backward()
    plain_optimizer.step()
    after = next(model.parameters()).detach()
    return {"deviation": float((after - plain.weight).abs().max()), "moved": float((after - before).abs().max())}


def _hybrid_adam() -> adam.CompiledDeviations:
    """HybridAdam on weights of the CPU, by the kernel that was compiled with the package."""
    found = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam)
    return {**found, "compiled_ahead": "colossalai._C.cpu_adam_x86" in sys.modules}


def judge_launch(_subject: str, _expect: object, evidence: LaunchEvidence) -> Finding:
    """Judge that one rank was launched, and the variable is as the image sets it."""
    return judge_figures(
        evidence,
        equal={"connections_before": "1", "connections_after": "1", "world": 1},
    )


def judge_booster(_subject: str, _expect: object, evidence: BoosterEvidence) -> Finding:
    """Judge that the step is plain torch's."""
    return judge_figures(
        evidence,
        at_most={"deviation": 1e-6},
        at_least={"moved": 0.001},
    )


CLAIMS = {
    "framework/colossalai-launch": judge_launch,
    "framework/colossalai-booster": judge_booster,
    "framework/colossalai-hybrid-adam": judge_adam,
}
