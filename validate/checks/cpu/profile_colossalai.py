"""P1 of the colossalai profile: it launches on one rank; its Booster and HybridAdam take the steps of plain torch."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness import adam, drawn
from validate.harness.forked import asked, attempt, free_port

_RATE = 0.1


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: colossalai launch, booster and hybrid-adam."""
    launched = attempt(_launch)
    yield from asked(
        claims,
        {
            "colossalai launch": lambda: launched,
            "colossalai booster": lambda: launched if "error" in launched else _booster(),
            "colossalai hybrid-adam": _hybrid_adam,
        },
    )


def _launch() -> BehaviourEvidence:
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


def _booster() -> BehaviourEvidence:
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


def _hybrid_adam() -> BehaviourEvidence:
    """HybridAdam on weights of the CPU, by the kernel that was compiled with the package."""
    found = adam.compare(importlib.import_module("colossalai.nn.optimizer").HybridAdam)
    return {**found, "compiled_ahead": "colossalai._C.cpu_adam_x86" in sys.modules}


CLAIMS = {"P1": judge}
