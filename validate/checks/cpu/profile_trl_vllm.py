"""framework: check that trl's GRPO trainer steps right, and hands the right weights to vLLM.

vLLM has no CPU path in this image. A sampler in plain torch stands in for its engine. What trl asks
of the engine and gives to it goes through vLLM's own classes, which refuse what they don't know.
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
    NEXT_STEP,
    Policy,
    WeightsEvidence,
    judge_step,
    judge_weights,
    log_probabilities,
)
from validate.claims import Claim
from validate.harness.forked import measure_claimed_subjects
from validate.judging import Finding

_END_TOKEN = 2
"""The token that ends an answer (examples/tiny.py)."""
_NOISE = 0.02
"""The standard deviation of the errors of log-probabilities, as in an engine in bfloat16. With it,
the ratio of policy and sampler, which trl corrects, is not 1."""
_CHANGE = 1.5
"""All parameters are multiplied by this, so that weights of before the change are recognised."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Measure what trl's GRPO hands over to vLLM, without a GPU and with a stand-in for vLLM.

    Yields the name and the result of each of three measurements that a claim asks for:
    `grpo-arguments` (a short training), `server-weights` and `server-adapters` (how weights are
    packed for vLLM's server).
    """
    # The matrices are tiny: several threads would wait more than they compute.
    importlib.import_module("torch").set_num_threads(1)
    # trl looks up vLLM's engine as `LLM` in this module, so the stand-in is put in its place.
    generation: Any = importlib.import_module("trl.generation.vllm_generation")
    generation.LLM = _Sampler

    with tempfile.TemporaryDirectory(prefix="trl-") as name:
        folder = Path(name)
        measures: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "grpo-arguments": lambda: train(folder),
            "server-weights": lambda: pack_weights(folder, None),
            "server-adapters": lambda: pack_weights(folder, make_adapters()),
        }
        yield from measure_claimed_subjects(claims, measures)


def train(folder: Path) -> BehaviourEvidence:
    """Take two steps of GRPO, compare them with plain torch, and return what trl asked vLLM for."""
    policy = Policy(folder / "policy")
    trainer = _grpo.make_trainer(policy, folder / "out", use_cpu=True)
    step = _grpo.compare_steps(policy, trainer)
    return {**step, "logprobs_mode": trainer.vllm_generation.llm.arguments.logprobs_mode}


def make_adapters() -> Any:
    """Return peft's settings of LoRA adapters that change the model from the start."""
    peft = importlib.import_module("peft")
    return peft.LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)


def pack_weights(folder: Path, adapters: Any) -> WeightsEvidence:
    """Pack a model's weights as trl does for a vLLM server, and compare them with the model's own.

    The model is a tiny policy: what trl trains, and vLLM generates text with. All its parameters
    are changed first. So the weights of before the change are recognised if trl sends these.

    adapters: peft's settings of LoRA, whose adapters trl must merge into the weights that it sends;
        None: the policy has no adapters.

    Returns how many weights were compared, the names of those that are not the policy's
    (`differing`), and how many differ from those of before the change (`control_stale`): all
    should.
    """
    safetensors = importlib.import_module("safetensors.torch")
    policy = Policy(folder / "policy")
    saved_weights = safetensors.load_file(policy.folder / "model.safetensors")
    trainer = _grpo.make_trainer(policy, folder / "out", adapters, use_cpu=True)
    for parameter in trainer.model.parameters():
        parameter.data.mul_(_CHANGE)

    # What must be sent: the weights with the adapters merged. They are merged in a copy, because
    # trl is to do so itself with the trainer's model.
    merged = copy.deepcopy(trainer.model)
    if adapters:
        merged = merged.merge_and_unload()
    expected_weights = merged.state_dict()

    sent_weights = pack_and_unpack(trainer)
    differing = []
    changed = 0
    for name, weight in sent_weights:
        if not weight.equal(expected_weights[name]):
            differing.append(name)
        if not weight.equal(saved_weights[name]):
            changed += 1
    return {"compared": len(sent_weights), "differing": differing, "control_stale": changed}


def pack_and_unpack(trainer: Any) -> Sequence[tuple[str, Any]]:
    """Return the names and tensors that a vLLM server would get from trl's trainer.

    trl yields the weights, and vLLM packs them into one buffer, sends it and unpacks it. Here it is
    packed and unpacked, but not sent.

    To compare each tensor when trl yields it would not be enough. vLLM copies the tensors into the
    buffer only when it has the last one, and trl 1.11 to 1.16 take the adapters out of the model
    before that. So what is sent may differ from what was yielded.
    """
    packing: Any = importlib.import_module("vllm.distributed.weight_transfer.packed_tensor")
    named_weights = trainer.vllm_generation._iter_named_params()
    packed = packing.pack_tensors(
        named_weights, lambda item: item[1], packing.DEFAULT_PACKED_BUFFER_SIZE_BYTES
    )
    unpacked: Sequence[tuple[str, Any]] = packing.unpack_tensor(
        packed.packed_tensor, packed.names, packed.shapes, packed.dtypes, packed.tensor_sizes
    )
    return unpacked


class _Sampler:
    """The part of vLLM's class LLM that trl uses, in plain torch.

    trl makes it with the arguments of LLM, and calls its public methods.
    """

    def __init__(self, **settings: Any) -> None:
        """Stand in for vLLM's LLM: load the model that trl hands over, with transformers.

        `settings` are the arguments that trl gives vLLM; `model` is the folder of the model. Raises
        TypeError for an argument that this vLLM does not know.
        """
        torch = importlib.import_module("torch")
        transformers = importlib.import_module("transformers")
        self.arguments = importlib.import_module("vllm.engine.arg_utils").EngineArgs(**settings)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            settings["model"], dtype=torch.float32
        ).eval()
        self.torch = torch
        self.generator = torch.Generator().manual_seed(1)
        # trl calls `load_weights` of llm_engine.model_executor.driver_worker.model_runner.model:
        # let that be this object.
        worker = SimpleNamespace(model_runner=SimpleNamespace(model=self))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def load_weights(self, weights: Sequence[tuple[str, Any]]) -> None:
        """Copy tensors into the model, by their names."""
        for name, value in weights:
            self.model.state_dict()[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        """Do nothing: this sampler has no cache."""

    def generate(
        self, prompts: Sequence[Mapping[str, Any]], sampling_params: Any, **_others: Any
    ) -> list[Any]:
        """Return an answer for each prompt, as vLLM does."""
        return [self._answer(prompt["prompt_token_ids"], sampling_params) for prompt in prompts]

    def _answer(self, prompt: Sequence[int], sampling_params: Any) -> Any:
        """Sample tokens until the end token or the limit, with noisy log-probabilities.

        `prompt` is a list of token IDs. Returns an object with the attributes of vLLM's
        RequestOutput that trl reads.
        """
        torch, temperature = self.torch, sampling_params.temperature
        tokens = list(prompt)
        # For each sampled token: token -> its log-probability. vLLM has other likely tokens, too.
        scores = []
        while len(tokens) - len(prompt) < sampling_params.max_tokens and tokens[-1] != _END_TOKEN:
            with torch.no_grad():
                logits = self.model(torch.tensor([tokens])).logits[0, -1]
            probabilities = (logits / temperature).softmax(-1)
            # Our own generator draws the token and the noise, so every run gives the same answers.
            token = torch.multinomial(probabilities, 1, generator=self.generator)[0]
            noise = _NOISE * float(torch.randn((), generator=self.generator))
            score = float(log_probabilities(logits, token, temperature)) + noise
            tokens.append(int(token))
            scores.append({int(token): SimpleNamespace(logprob=score, rank=1)})
        answer = SimpleNamespace(token_ids=tokens[len(prompt) :], logprobs=scores)
        return SimpleNamespace(prompt_token_ids=prompt, outputs=[answer])


TENSORS = 21
"""The number of tensors of the policy."""


def judge_arguments(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge the step, and that trl asks for log-probabilities after temperature and top-p."""
    return judge_step(evidence, {"logprobs_mode": "processed_logprobs"})


def judge_server(_subject: str, _expect: object, evidence: WeightsEvidence) -> Finding:
    """Judge that trl packs all weights for a server, each as the policy has it."""
    return judge_weights(evidence, TENSORS)


CLAIMS = {
    "framework/grpo-arguments": judge_arguments,
    "framework/server-weights": judge_server,
    "framework/server-adapters": judge_server,
}
NEXT_STEPS = dict.fromkeys(CLAIMS, NEXT_STEP)
