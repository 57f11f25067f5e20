"""P2 of the trl-vllm profile: vLLM samples from the policy that trl trains, and says of each token how likely it was.

Its probabilities are compared with the transformers model's, as ratios: the field measures how many lie outside of 0.9
to 1.1. Every control is the same measurement on something that trainers got wrong.
"""

import functools
import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from validate.checks import Settings, _examples, _grpo
from validate.checks._behaviour import BehaviourEvidence, judge
from validate.checks._grpo import Policy, log_probabilities
from validate.claims import Claim
from validate.harness.forked import in_fork

SETTINGS = Settings(time_limit=2400, runs_alone=True)

_REPEATS, _LENGTH = 8, 24
"""Completions of each prompt, and tokens of each: 768 of each sampling."""
_NEAR = 0.1
_SHARE = 0.2  # of the GPU's memory
_MOVED = 0.05  # of each weight, at random: an optimiser's step
_PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
Answers = Sequence[tuple[int, Sequence[int], Sequence[float]]]
"""Number of the prompt, tokens, and the log-probability of each as the sampler reports it."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of each claim: of `engine` (its settings), or of trl's own colocated engine.

    Each engine has a process of its own: one that has ended holds no memory. An example, too, runs with nobody beside
    it: vLLM ends where memory comes free while it measures how much there is.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a container without a network has no other
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    together: Mapping[str, Any] = {}
    for claim in claims:
        if "example" in claim.expect:
            yield from _examples.measure([claim])
        elif "engine" in claim.expect:
            yield claim.subject, in_fork(functools.partial(_rollout, claim.expect))
        else:
            together = together or in_fork(_colocated)
            yield claim.subject, together if "error" in together else together[claim.subject]


def _rollout(expect: Mapping[str, Any]) -> BehaviourEvidence:
    """One engine beside one transformers model: each sampling, then each control.

    expect: `engine`, arguments of vLLM's LLM, of which `dtype` is the model's too (with `enable_lora` both have one
    adapter); `samplings`; `faults`: what the controls take.
    """
    folder, faults = Path(tempfile.mkdtemp(prefix="rollout-")), expect["faults"]
    policy = Policy(folder / "policy", expect["engine"]["dtype"])
    sampler, prompts = _Sampler(policy, expect["engine"]), policy.prompts()
    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(policy.folder, dtype=policy.dtype).to("cuda").eval()
    if lora := expect["engine"].get("enable_lora", False):  # with an adapter that says something
        peft, sampler.adapter = importlib.import_module("peft"), str(folder / "adapter")
        settings = peft.LoraConfig(r=8, lora_alpha=4, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, settings).eval()
        model.save_pretrained(sampler.adapter)
    samplings = {name: sampler.answers(sampling) for name, sampling in expect["samplings"].items()}
    found = {name: _compared(model, prompts, samplings[name], one) for name, one in expect["samplings"].items()}
    plain, answers = expect["samplings"]["temperature 1"], samplings["temperature 1"]
    other = [[faults["token"] if token == faults["ends"] else token for token in prompt] for prompt in prompts]
    controls = {
        "control_truncated": _compared(model, prompts, samplings["top-p"]),
        "control_temperature": _compared(model, prompts, samplings["temperature 0.7"]),
        "control_template": _compared(model, policy.prompts(faults["template"]), answers),
        "control_token": _compared(model, other, answers),
    }
    sampler.adapter = ""
    if not lora:
        _move(model)
    controls["control_stale"] = _compared(model, prompts, sampler.answers(plain))
    if not lora:
        sampler.take(model)
        found["after a sync"] = _compared(model, prompts, answers := sampler.answers(plain))
    for module in model.train().modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = faults["dropout"]
    controls["control_dropout"] = _compared(model, prompts, answers)
    return {
        **{key: max(one[key] for one in found.values()) for key in ("outside", "median")},
        **{name: one["outside"] for name, one in controls.items()},
        "cached": sampler.cached,
        "samplings": found,
    }


class _Sampler:
    """vLLM in this process, as trl starts it but for what `engine` says."""

    def __init__(self, policy: Policy, engine: Mapping[str, Any]) -> None:
        self.vllm = importlib.import_module("vllm")
        self.prompts = policy.prompts()
        self.adapter = ""
        self.cached = 0
        """Tokens of prompts that were not computed again."""
        settings = {"max_model_len": _grpo.LENGTH, "max_num_seqs": 64, "gpu_memory_utilization": _SHARE, "seed": 1}
        self.llm = self.vllm.LLM(str(policy.folder), logprobs_mode="processed_logprobs", **settings, **engine)

    def answers(self, sampling: Mapping[str, Any]) -> Answers:
        lora = importlib.import_module("vllm.lora.request")
        adapter = lora.LoRARequest("adapter", 1, self.adapter) if self.adapter else None
        asked = [{"prompt_token_ids": prompt} for prompt in self.prompts for _ in range(_REPEATS)]
        settings = self.vllm.SamplingParams(max_tokens=_LENGTH, ignore_eos=True, logprobs=0, **sampling)
        found = []
        for number, output in enumerate(self.llm.generate(asked, settings, lora_request=adapter, use_tqdm=False)):
            self.cached += output.num_cached_tokens or 0
            tokens, places = list(output.outputs[0].token_ids), output.outputs[0].logprobs
            scores = [place[token].logprob for place, token in zip(places, tokens, strict=True)]
            found.append((number // _REPEATS, tokens, scores))
        return found

    def take(self, model: Any) -> None:
        """The trainer's weights, as trl hands them over."""
        for name, parameter in model.named_parameters():
            _engine(self.llm).load_weights([(name, parameter.data)])
        self.llm.reset_prefix_cache()


def _engine(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.model_runner.model


def _compared(
    model: Any, prompts: Sequence[Sequence[int]], answers: Answers, sampling: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, float]:
    """The model's probability of each token over the sampler's: the share outside of 1 +- 0.1, and the spread."""
    torch = importlib.import_module("torch")
    ratios = []
    with torch.no_grad():
        for number, tokens, scores in answers:
            row = torch.tensor([[*prompts[number], *tokens]], device=model.device)
            logits = model(row).logits[0, len(prompts[number]) - 1 : -1].float()
            own = log_probabilities(logits, row[0, len(prompts[number]) :], **sampling)
            ratios.append((own.cpu() - torch.tensor(scores)).exp())
    ratio = torch.cat(ratios)
    apart = (ratio - 1).abs()
    found = {"outside": (apart > _NEAR).float().mean(), "median": apart.median(), "p99": apart.quantile(0.99)}
    return {**{key: round(float(one), 6) for key, one in found.items()}, "tokens": len(ratio)}


def _move(model: Any) -> None:
    torch = importlib.import_module("torch")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean() * _MOVED)


def _colocated() -> Mapping[str, BehaviourEvidence]:
    """trl's own engine in the trainer's process: the memory that it takes and gives back, a step, and its weights."""
    importlib.import_module("torch").zeros(1, device="cuda")
    before, policy = _free(), Policy(Path(tempfile.mkdtemp(prefix="rollout-")))
    settings = {"vllm_enable_sleep_mode": True, "vllm_gpu_memory_utilization": _SHARE}
    trainer = _grpo.trainer_of(policy, policy.folder / "out", **settings)
    generation = trainer.vllm_generation
    generation.llm.wake_up()
    awake = _free()
    generation.llm.sleep(level=2)  # as trl does
    asleep = _free()
    step = _grpo.step(policy, trainer)
    generation.sync_weights()
    _move(trainer.model)
    stale = _differing(trainer)
    generation.sync_weights()
    differing = _differing(trainer)
    return {
        "sleep": {"taken_gib": (before - awake) / 2**30, "back": (asleep - awake) / (before - awake)},
        "grpo step": step,
        "weight sync": {
            "compared": len(differing),
            "differing": [name for name, differs in differing.items() if differs],
            "control_stale": sum(stale.values()),
        },
    }


def _free() -> int:
    torch = importlib.import_module("torch")
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def _differing(trainer: Any) -> dict[str, bool]:
    """Each of the engine's tensors: whether a byte of it is not the trainer's, in the engine's precision."""
    torch = importlib.import_module("torch")
    own = dict(trainer.model.named_parameters())
    found = {}
    for name, held in _engine(trainer.vllm_generation.llm).named_parameters():
        *_, module, _ = name.split(".")
        parts = [name.replace(module, part) for part in _PACKED.get(module, [module])]
        wanted = torch.cat([own[part].data for part in parts]).to(held.dtype)
        same = held.data[: len(wanted)].contiguous().view(torch.uint8)  # vLLM rounds the vocabulary up
        found[name] = not same.equal(wanted.contiguous().view(torch.uint8))
    return found


CLAIMS = {"P2": judge}
