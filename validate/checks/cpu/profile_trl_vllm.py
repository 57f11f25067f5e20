"""P1 of the trl-vllm profile: trl's GRPO trainer is made, and its step is right where the sampler is.

vLLM has no CPU path in this image. A sampler in plain torch stands in for its engine; what trl gives to the engine and
asks of it goes through vLLM's own classes, which refuse what they don't know.
"""

import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from validate.checks import _grpo
from validate.checks._behaviour import BehaviourEvidence, judge
from validate.checks._grpo import Policy, log_probabilities
from validate.claims import Claim
from validate.harness.forked import asked

_ENDS = 2
"""The token that ends an answer (examples/tiny.py)."""
_NOISE = 0.02
"""Of a log-probability: as far off as an engine in bfloat16."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of `grpo arguments`."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    importlib.import_module("torch").set_num_threads(1)  # products are tiny: threads would wait more than they compute
    generation: Any = importlib.import_module("trl.generation.vllm_generation")
    generation.LLM = _Sampler
    with tempfile.TemporaryDirectory(prefix="trl-") as name:
        yield from asked(claims, {"grpo arguments": lambda: _step(Path(name))})


def _step(folder: Path) -> BehaviourEvidence:
    policy = Policy(folder / "policy")
    trainer = _grpo.trainer_of(policy, folder / "out", use_cpu=True)
    return {**_grpo.step(policy, trainer), "logprobs_mode": trainer.vllm_generation.llm.taken.logprobs_mode}


class _Sampler:
    """What trl calls of vLLM's LLM, in plain torch, with weights as trl hands them over."""

    def __init__(self, **settings: Any) -> None:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
        self.taken = importlib.import_module("vllm.engine.arg_utils").EngineArgs(**settings)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=torch.float32).eval()
        self.torch, self.chance = torch, torch.Generator().manual_seed(1)
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights: Sequence[tuple[str, Any]]) -> None:
        for name, value in weights:
            self.model.state_dict()[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        """It has none."""

    def generate(self, prompts: Sequence[Mapping[str, Any]], sampling_params: Any, **_others: Any) -> list[Any]:
        return [self._answer(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    def _answer(self, prompt: Sequence[int], settings: Any) -> Any:
        torch, tokens, places = self.torch, list(prompt), []
        while len(tokens) - len(prompt) < settings.max_tokens and tokens[-1] != _ENDS:
            with torch.no_grad():
                logits = self.model(torch.tensor([tokens])).logits[0, -1]
            token = torch.multinomial((logits / settings.temperature).softmax(-1), 1, generator=self.chance)[0]
            noise = _NOISE * float(torch.randn((), generator=self.chance))
            score = float(log_probabilities(logits, token, settings.temperature)) + noise
            tokens.append(int(token))
            places.append({int(token): SimpleNamespace(logprob=score, rank=1)})
        answer = SimpleNamespace(token_ids=tokens[len(prompt) :], logprobs=places)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[answer])


CLAIMS = {"P1": judge}
