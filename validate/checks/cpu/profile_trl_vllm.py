"""framework of the trl-vllm profile: trl's GRPO trainer is made, its step is right where the sampler is, and so is
what it hands to a vLLM server.

vLLM has no CPU path in this image. A sampler in plain torch stands in for its engine; what trl gives to the engine and
asks of it goes through vLLM's own classes, which refuse what they don't know.
"""

import copy
import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from validate.checks import _grpo
from validate.checks._behaviour import BehaviourEvidence
from validate.checks._grpo import (
    Policy,
    WeightsEvidence,
    judge_step,
    judge_weights,
    log_probabilities,
)
from validate.claims import Claim
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding

_ENDS = 2
"""The token that ends an answer (examples/tiny.py)."""
_NOISE = 0.02
"""Of a log-probability: as far off as an engine in bfloat16."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evidence of `grpo arguments`, `server weights` and `server adapters`."""
    importlib.import_module("torch").set_num_threads(
        1
    )  # products are tiny: threads would wait more than they compute
    generation: Any = importlib.import_module("trl.generation.vllm_generation")
    generation.LLM = _Sampler
    with tempfile.TemporaryDirectory(prefix="trl-") as name:
        folder = Path(name)
        measures: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "grpo-arguments": lambda: _step(folder),
            "server-weights": lambda: _handed_over(folder, None),
            "server-adapters": lambda: _handed_over(folder, _adapters()),
        }
        yield from measure_claimed_subjects(claims, measures)


def _step(folder: Path) -> BehaviourEvidence:
    policy = Policy(folder / "policy")
    trainer = _grpo.trainer_of(policy, folder / "out", use_cpu=True)
    return {
        **_grpo.step(policy, trainer),
        "logprobs_mode": trainer.vllm_generation.llm.taken.logprobs_mode,
    }


def _adapters() -> Any:
    return importlib.import_module("peft").LoraConfig(
        r=8, target_modules="all-linear", init_lora_weights=False
    )


def _handed_over(folder: Path, adapters: Any) -> WeightsEvidence:
    """What trl's server mode packs for vLLM, by name, against the policy's weights and (the control) the first ones.

    vLLM copies what it was given when the last tensor has come. trl 1.11 to 1.16 take the adapters out just before.
    """
    packing: Any = importlib.import_module("vllm.distributed.weight_transfer.packed_tensor")
    policy = Policy(folder / "policy")
    first = importlib.import_module("safetensors.torch").load_file(
        policy.folder / "model.safetensors"
    )
    trainer = _grpo.trainer_of(policy, folder / "out", adapters, use_cpu=True)
    for parameter in trainer.model.parameters():
        parameter.data.mul_(1.5)
    copied = copy.deepcopy(trainer.model)
    wanted = (copied.merge_and_unload() if adapters else copied).state_dict()
    given = trainer.vllm_generation._iter_named_params()
    packed = packing.pack_tensors(
        given, lambda item: item[1], packing.DEFAULT_PACKED_BUFFER_SIZE_BYTES
    )
    found = packing.unpack_tensor(
        packed.packed_tensor, packed.names, packed.shapes, packed.dtypes, packed.tensor_sizes
    )
    return {
        "compared": len(found),
        "differing": [name for name, value in found if not value.equal(wanted[name])],
        "control_stale": sum(not value.equal(first[name]) for name, value in found),
    }


class _Sampler:
    """What trl calls of vLLM's LLM, in plain torch, with weights as trl hands them over."""

    def __init__(self, **settings: Any) -> None:
        torch, transformers = (
            importlib.import_module("torch"),
            importlib.import_module("transformers"),
        )
        self.taken = importlib.import_module("vllm.engine.arg_utils").EngineArgs(**settings)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.float32
        ).eval()
        self.torch, self.chance = torch, torch.Generator().manual_seed(1)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights: Sequence[tuple[str, Any]]) -> None:
        for name, value in weights:
            self.model.state_dict()[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        """It has none."""

    def generate(
        self, prompts: Sequence[Mapping[str, Any]], sampling_params: Any, **_others: Any
    ) -> list[Any]:
        return [self._answer(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    def _answer(self, prompt: Sequence[int], settings: Any) -> Any:
        torch, tokens, places = self.torch, list(prompt), []
        while len(tokens) - len(prompt) < settings.max_tokens and tokens[-1] != _ENDS:
            with torch.no_grad():
                logits = self.model(torch.tensor([tokens])).logits[0, -1]
            token = torch.multinomial(
                (logits / settings.temperature).softmax(-1), 1, generator=self.chance
            )[0]
            noise = _NOISE * float(torch.randn((), generator=self.chance))
            score = float(log_probabilities(logits, token, settings.temperature)) + noise
            tokens.append(int(token))
            places.append({int(token): SimpleNamespace(logprob=score, rank=1)})
        answer = SimpleNamespace(token_ids=tokens[len(prompt) :], logprobs=places)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[answer])


TENSORS = 21
"""Of the policy."""


def judge_arguments(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge the step, and that vLLM was asked for the log-probabilities of what it samples from."""
    return judge_step(evidence, {"logprobs_mode": "processed_logprobs"})


def judge_server(_subject: str, _expect: object, evidence: WeightsEvidence) -> Finding:
    """Judge what trl packs for a server."""
    return judge_weights(evidence, TENSORS)


CLAIMS = {
    "framework/grpo-arguments": judge_arguments,
    "framework/server-weights": judge_server,
    "framework/server-adapters": judge_server,
}
