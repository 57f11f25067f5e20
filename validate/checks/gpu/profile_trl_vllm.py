"""framework of the trl-vllm profile: vLLM samples from the policy that trl trains, and says of each token how likely
it was.

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
from validate.checks._behaviour import BehaviourEvidence, judge_figures, judge_limits
from validate.checks._grpo import (
    Policy,
    WeightsEvidence,
    judge_step,
    judge_weights,
    log_probabilities,
)
from validate.claims import Claim
from validate.harness.forked import measure_in_fork
from validate.judging import Finding

SETTINGS = Settings(time_limit=2400, runs_alone=True)

_REPEATS, _LENGTH = 8, 24
"""Completions of each prompt, and tokens of each: 768 of each sampling."""
_NEAR = 0.1
_SHARE = 0.2  # of the GPU's memory
_MOVED = 0.05  # of each weight, at random: an optimiser's step
_PACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
SAMPLINGS: Mapping[str, Mapping[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {"temperature": 1.0},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1.3": {"temperature": 1.3},
    "top-p": {"temperature": 1.0, "top_p": 0.6},
    "top-k": {"temperature": 1.0, "top_k": 8},
}
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "rollout-eager": {"dtype": "bfloat16", "enforce_eager": True, "enable_prefix_caching": False},
    "rollout-graphs": {"dtype": "bfloat16", "enable_prefix_caching": True},
    "rollout-float16": {"dtype": "float16", "enforce_eager": True, "enable_prefix_caching": True},
    "rollout-lora": {"dtype": "bfloat16", "enforce_eager": True, "enable_lora": True},
}
"""Subject -> arguments of vLLM's LLM. `dtype` is the model's too; with `enable_lora` both have one adapter."""
END_TOKEN, OTHER_TOKEN = 2, 3
"""Of messages; a control's ends them by another."""
OTHER_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}assistant: "
DROPOUT = 0.3
"""Of a control's attention."""
Answers = Sequence[tuple[int, Sequence[int], Sequence[float]]]
"""Number of the prompt, tokens, and the log-probability of each as the sampler reports it."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of each claim: of an engine of its own, or of trl's colocated engine.

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
        elif claim.subject in ENGINES:
            yield (
                claim.subject,
                measure_in_fork(functools.partial(_rollout, ENGINES[claim.subject])),
            )
        else:
            together = together or measure_in_fork(_colocated)
            yield claim.subject, together if "error" in together else together[claim.subject]


def _rollout(engine: Mapping[str, Any]) -> BehaviourEvidence:
    """Compare one engine with one transformers model: each sampling, then each control."""
    folder = Path(tempfile.mkdtemp(prefix="rollout-"))
    policy = Policy(folder / "policy", engine["dtype"])
    sampler, prompts = _Sampler(policy, engine), policy.prompts()
    transformers = importlib.import_module("transformers")
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(policy.folder, dtype=policy.dtype)
        .to("cuda")
        .eval()
    )
    lora = engine.get("enable_lora", False)
    if lora:
        # With an adapter that says something.
        peft, sampler.adapter = importlib.import_module("peft"), str(folder / "adapter")
        settings = peft.LoraConfig(
            r=8, lora_alpha=4, target_modules="all-linear", init_lora_weights=False
        )
        model = peft.get_peft_model(model, settings).eval()
        model.save_pretrained(sampler.adapter)
    samplings = {name: sampler.answers(sampling) for name, sampling in SAMPLINGS.items()}
    found = {
        name: _compared(model, prompts, samplings[name], one) for name, one in SAMPLINGS.items()
    }
    plain, answers = SAMPLINGS["temperature 1"], samplings["temperature 1"]
    other = [
        [OTHER_TOKEN if token == END_TOKEN else token for token in prompt] for prompt in prompts
    ]
    controls = {
        "control_truncated": _compared(model, prompts, samplings["top-p"]),
        "control_temperature": _compared(model, prompts, samplings["temperature 0.7"]),
        "control_template": _compared(model, policy.prompts(OTHER_TEMPLATE), answers),
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
            module.attention_dropout = DROPOUT
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
        settings = {
            "max_model_len": _grpo.LENGTH,
            "max_num_seqs": 64,
            "gpu_memory_utilization": _SHARE,
            "seed": 1,
        }
        self.llm = self.vllm.LLM(
            str(policy.folder), logprobs_mode="processed_logprobs", **settings, **engine
        )

    def answers(self, sampling: Mapping[str, Any]) -> Answers:
        lora = importlib.import_module("vllm.lora.request")
        adapter = lora.LoRARequest("adapter", 1, self.adapter) if self.adapter else None
        asked = [{"prompt_token_ids": prompt} for prompt in self.prompts for _ in range(_REPEATS)]
        settings = self.vllm.SamplingParams(
            max_tokens=_LENGTH, ignore_eos=True, logprobs=0, **sampling
        )
        found = []
        for number, output in enumerate(
            self.llm.generate(asked, settings, lora_request=adapter, use_tqdm=False)
        ):
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
    model: Any,
    prompts: Sequence[Sequence[int]],
    answers: Answers,
    sampling: Mapping[str, Any] = MappingProxyType({}),
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
    found = {
        "outside": (apart > _NEAR).float().mean(),
        "median": apart.median(),
        "p99": apart.quantile(0.99),
    }
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
        "sleep": {
            "taken_gib": (before - awake) / 2**30,
            "back": (asleep - awake) / (before - awake),
        },
        "grpo-step": step,
        "weight-sync": {
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
        same = (
            held.data[: len(wanted)].contiguous().view(torch.uint8)
        )  # vLLM rounds the vocabulary up
        found[name] = not same.equal(wanted.contiguous().view(torch.uint8))
    return found


MOST_OUTSIDE = 0.15
"""The share of ratios outside of 0.9 to 1.1. On an H200: 5 % in bfloat16, 0.3 % in float16, with an adapter four times
as strong 10 %; of each control, a thing that trainers got wrong, 72 % and more."""
MOST_MEDIAN = 0.05
LEAST_OUTSIDE_OF_CONTROL = 0.5
CONTROLS = (
    "control_truncated",
    "control_stale",
    "control_temperature",
    "control_template",
    "control_dropout",
    "control_token",
)
TENSORS = 15
"""Of the engine, which packs some of the policy's together."""


def judge_rollout(subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge the ratios of all samplings, those of the controls, and that a prefix cache was used where there is one."""
    at_least = dict.fromkeys(CONTROLS, LEAST_OUTSIDE_OF_CONTROL)
    equal = {}
    has_cache = ENGINES[subject].get("enable_prefix_caching")
    if has_cache is False:
        equal["cached"] = 0
    elif has_cache:
        at_least["cached"] = 1
    return judge_figures(
        evidence,
        equal=equal,
        at_most={"outside": MOST_OUTSIDE, "median": MOST_MEDIAN},
        at_least=at_least,
    )


def judge_colocated_step(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge a step on what vLLM sampled in the same process."""
    return judge_step(evidence)


def judge_sync(_subject: str, _expect: object, evidence: WeightsEvidence) -> Finding:
    """Judge the engine's tensors after a sync."""
    return judge_weights(evidence, TENSORS)


def judge_sleep(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge that memory was taken, and given back."""
    return judge_figures(evidence, at_least={"taken_gib": 1.0, "back": 0.9})


CLAIMS = {
    **dict.fromkeys((f"framework/{subject}" for subject in ENGINES), judge_rollout),
    "framework/grpo-step": judge_colocated_step,
    "framework/weight-sync": judge_sync,
    "framework/sleep": judge_sleep,
    # The examples that run with nobody beside them.
    "gpu-examples": judge_limits,
}
