"""framework of the trl-vllm profile: vLLM must sample from the very policy that trl trains.

vLLM reports how likely each sampled token was. These probabilities are compared with those of the
transformers model, as ratios: the field measures how many lie outside of 0.9 to 1.1. Every control
is the same measurement on something that trainers have got wrong. Other subjects are about trl's
own engine in the trainer's process: its memory, a training step, and its weights.
"""

import functools
import importlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

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

_ANSWERS_A_PROMPT = 8
_ANSWER_TOKENS = 24
"""Tokens of each answer; 768 of each sampling in all."""
_RATIO_MARGIN = 0.1
"""How far from 1 the ratio of two probabilities may be."""
_GPU_MEMORY_SHARE = 0.2
"""The part of the GPU's memory that vLLM takes."""
_NOISE = 0.05
"""The size of a random change of weights, as a share of their mean size."""
_PACKED_MODULES = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}
"""A module of vLLM's engine -> the policy's modules whose weights it holds one after another."""
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
"""Subject -> arguments of vLLM's LLM. `dtype` is also the model's. With `enable_lora` the engine
has the model's adapter."""
END_TOKEN, OTHER_TOKEN = 2, 3
"""The token that ends a message, and the one that ends it in a control."""
OTHER_TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}assistant: "
"""A control's chat template."""
DROPOUT = 0.3
"""The dropout of attention in a control."""


class Answer(NamedTuple):
    """What vLLM sampled after a prompt."""

    prompt_number: int
    tokens: Sequence[int]
    log_probabilities: Sequence[float]  # of each token, as vLLM reports it


class RatioFigures(TypedDict):
    """How far the model's probabilities of sampled tokens are from the sampler's."""

    outside: float  # the share of ratios that are further than 0.1 from 1
    median: float  # distance of a ratio from 1
    p99: float  # the distance that 99 % of the ratios do not exceed
    tokens: int


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Measure vLLM as trl uses it, for each claim, and yield the claim's subject and the result.

    A subject is a setting of vLLM's engine (ENGINES), one of three things about trl's own engine
    (`grpo-step`, `weight-sync` and `sleep`), or an example program. Examples run here, too, because
    nothing else runs at the same time: vLLM fails if memory comes free while it measures how much
    there is.
    """
    # vLLM must run in this process, where its model can be reached.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    # A container without a network has only the loopback interface.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # With a second GPU, the Trainer would split its batches over both (_examples.measure).
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    # Subject -> evidence, of trl's own engine; empty until it was measured.
    colocated: Mapping[str, Any] = {}
    for claim in claims:
        if "example" in claim.expect:
            yield from _examples.measure([claim])
        elif claim.subject in ENGINES:
            # In a process of its own: an engine's memory comes free only when its process ends.
            measure_engine = functools.partial(measure_rollout, ENGINES[claim.subject])
            yield claim.subject, measure_in_fork(measure_engine)
        else:
            # trl's own engine is measured once, for all three of its subjects.
            if not colocated:
                colocated = measure_in_fork(measure_colocated_engine)
            # After an error nothing is measured, and each subject gets the error.
            evidence = colocated if "error" in colocated else colocated[claim.subject]
            yield claim.subject, evidence


def measure_rollout(engine: Mapping[str, Any]) -> BehaviourEvidence:
    """Compare the probabilities of tokens that vLLM reports with those of the transformers model.

    `engine` has the arguments of vLLM's LLM. The evidence says how far the probabilities are apart:
    for each sampling (see `compare_probabilities`) and for controls, `control_...`, in which the
    two are not of the same weights or text, so that they must be far apart. `cached` counts the
    prompt tokens that came from vLLM's prefix cache.
    """
    # vLLM samples with the weights of the policy, and transformers loads the same weights.
    folder = Path(tempfile.mkdtemp(prefix="rollout-"))
    policy = Policy(folder / "policy", engine["dtype"])
    sampler = Sampler(policy, engine)
    prompts = policy.prompts()
    auto_model = importlib.import_module("transformers").AutoModelForCausalLM
    model = auto_model.from_pretrained(policy.folder, dtype=policy.dtype).to("cuda").eval()
    has_adapter = engine.get("enable_lora", False)
    if has_adapter:
        sampler.adapter_folder = str(folder / "adapter")
        model = add_random_adapter(model, sampler.adapter_folder)

    # Sample before the controls below change the weights and leave the adapter out.
    answers = {name: sampler.sample(sampling) for name, sampling in SAMPLINGS.items()}
    samplings = {}
    for name, sampling in SAMPLINGS.items():
        samplings[name] = compare_probabilities(model, prompts, answers[name], sampling)
    controls = compare_wrong_assumptions(policy, model, answers)

    # A control: the sampler has other weights than the model. Take the sampler's adapter away or,
    # if there is none, change the model's weights.
    plain_answers = answers["temperature 1"]
    plain_sampling = SAMPLINGS["temperature 1"]
    if has_adapter:
        sampler.adapter_folder = ""
    else:
        add_noise(model)
    stale_answers = sampler.sample(plain_sampling)
    controls["control_stale"] = compare_probabilities(model, prompts, stale_answers)
    if not has_adapter:
        # The sampler gets the changed weights as well, so both must agree again.
        sampler.load_weights(model)
        plain_answers = sampler.sample(plain_sampling)
        samplings["after a sync"] = compare_probabilities(model, prompts, plain_answers)

    # A control: the model drops a part of its attention, as it may in training.
    for module in model.train().modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = DROPOUT
    controls["control_dropout"] = compare_probabilities(model, prompts, plain_answers)

    outside_of_controls = {name: figures["outside"] for name, figures in controls.items()}
    return {
        # The worst of all samplings.
        "outside": max(figures["outside"] for figures in samplings.values()),
        "median": max(figures["median"] for figures in samplings.values()),
        **outside_of_controls,
        "cached": sampler.cached_tokens,
        "samplings": samplings,
    }


def compare_wrong_assumptions(
    policy: Policy, model: Any, answers: Mapping[str, Sequence[Answer]]
) -> dict[str, RatioFigures]:
    """Return controls in which the trainer assumes another prompt or sampling than there was.

    A control is a comparison that must come out bad, or the others would prove nothing. `model` is
    the transformers model; `answers`: name of a sampling (its temperature or top-p) -> what vLLM
    sampled by it.
    """
    prompts = policy.prompts()
    prompts_by_other_template = policy.prompts(OTHER_TEMPLATE)
    wrongly_ended_prompts = []
    for prompt in prompts:
        wrongly_ended_prompts.append(
            [OTHER_TOKEN if token == END_TOKEN else token for token in prompt]
        )

    plain_answers = answers["temperature 1"]
    return {
        # By default compare_probabilities assumes a temperature of 1, and no token left out.
        "control_truncated": compare_probabilities(model, prompts, answers["top-p"]),
        "control_temperature": compare_probabilities(model, prompts, answers["temperature 0.7"]),
        "control_template": compare_probabilities(model, prompts_by_other_template, plain_answers),
        "control_token": compare_probabilities(model, wrongly_ended_prompts, plain_answers),
    }


def add_random_adapter(model: Any, folder: str) -> Any:
    """Add a LoRA adapter with random weights to a model, save it to a folder, return the model.

    An adapter adds the product of two small matrices, A and B, to a weight. A new one usually
    changes nothing, because its B is zero; this one does.
    """
    peft = importlib.import_module("peft")
    settings = peft.LoraConfig(
        r=8, lora_alpha=4, target_modules="all-linear", init_lora_weights=False
    )
    model = peft.get_peft_model(model, settings).eval()
    model.save_pretrained(folder)
    return model


class Sampler:
    """vLLM's engine in this process, started with trl's arguments and those of ENGINES."""

    def __init__(self, policy: Policy, engine: Mapping[str, Any]) -> None:
        """Start vLLM with the saved policy. `engine` holds further arguments of vllm.LLM."""
        self.vllm = importlib.import_module("vllm")
        self.prompts = policy.prompts()
        self.adapter_folder = ""
        """The adapter that it samples with; empty: none."""
        self.cached_tokens = 0
        """How many tokens of prompts were taken from the prefix cache."""
        self.llm = self.vllm.LLM(
            str(policy.folder),
            # Report log-probabilities after temperature, top-p and top-k, not those before.
            logprobs_mode="processed_logprobs",
            max_model_len=_grpo.LENGTH,
            max_num_seqs=64,
            gpu_memory_utilization=_GPU_MEMORY_SHARE,
            seed=1,
            **engine,
        )

    def sample(self, sampling: Mapping[str, Any]) -> list[Answer]:
        """Return several answers to each prompt, in the order of the prompts.

        Adds to `cached_tokens` how many tokens of prompts came from the prefix cache. `sampling`
        holds arguments of SamplingParams: `{"temperature": 1.0, "top_p": 0.6}`.
        """
        lora_request = importlib.import_module("vllm.lora.request").LoRARequest
        adapter = None
        if self.adapter_folder:
            adapter = lora_request("adapter", 1, self.adapter_folder)
        requests = []
        for prompt in self.prompts:
            for _ in range(_ANSWERS_A_PROMPT):
                requests.append({"prompt_token_ids": prompt})
        # Each answer has all its tokens, even after an end token. `logprobs=0` asks for the
        # log-probability of the sampled token and no other.
        settings = self.vllm.SamplingParams(
            max_tokens=_ANSWER_TOKENS, ignore_eos=True, logprobs=0, **sampling
        )
        outputs = self.llm.generate(requests, settings, lora_request=adapter, use_tqdm=False)

        answers = []
        for number, output in enumerate(outputs):
            self.cached_tokens += output.num_cached_tokens or 0
            completion = output.outputs[0]
            tokens = list(completion.token_ids)
            # For each position, vLLM gives a mapping from tokens to their log-probabilities.
            scores = [
                position[token].logprob
                for position, token in zip(completion.logprobs, tokens, strict=True)
            ]
            answers.append(Answer(number // _ANSWERS_A_PROMPT, tokens, scores))
        return answers

    def load_weights(self, model: Any) -> None:
        """Replace the engine's weights by a model's, one by one, as trl does."""
        for name, parameter in model.named_parameters():
            model_of_engine(self.llm).load_weights([(name, parameter.data)])
        self.llm.reset_prefix_cache()


def model_of_engine(llm: Any) -> Any:
    """Return the torch module that vLLM's engine in this process runs."""
    return llm.llm_engine.model_executor.driver_worker.model_runner.model


def compare_probabilities(
    model: Any,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Answer],
    sampling: Mapping[str, Any] = MappingProxyType({}),
) -> RatioFigures:
    """Compare the probabilities that a sampler reported for its tokens with those of a model.

    For each token, the ratio of the two is compared with 1. "outside" is the share of ratios that
    are farther from 1 than _RATIO_MARGIN; "median" and "p99" are distances from 1.

    prompts: token IDs, in the order by which answers number them.
    answers: the tokens that were sampled, and their log-probabilities.
    sampling: from which distribution the tokens were drawn (the arguments of `log_probabilities`);
        by default from the model's own.
    """
    torch = importlib.import_module("torch")
    ratios_of_answers = []
    with torch.no_grad():
        for answer in answers:
            prompt = prompts[answer.prompt_number]
            tokens = torch.tensor([[*prompt, *answer.tokens]], device=model.device)
            # The logits at a token predict the next one, so those of the answer begin at the last
            # token of the prompt.
            logits = model(tokens).logits[0, len(prompt) - 1 : -1].float()
            answer_tokens = tokens[0, len(prompt) :]
            log_probabilities_of_model = log_probabilities(logits, answer_tokens, **sampling)
            reported = torch.tensor(answer.log_probabilities)
            ratios_of_answers.append((log_probabilities_of_model.cpu() - reported).exp())

    distances = (torch.cat(ratios_of_answers) - 1).abs()
    is_outside = distances > _RATIO_MARGIN
    return {
        "outside": round(float(is_outside.float().mean()), 6),
        "median": round(float(distances.median()), 6),
        "p99": round(float(distances.quantile(0.99)), 6),
        "tokens": len(distances),
    }


def add_noise(model: Any) -> None:
    """Change every weight of a model at random, in place, as a step of an optimiser would."""
    torch = importlib.import_module("torch")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean() * _NOISE)


def measure_colocated_engine() -> Mapping[str, BehaviourEvidence]:
    """Measure trl's own engine in the trainer's process, and return the evidence of its subjects.

    - "sleep": the memory that the engine takes, and the share of it that it gives back asleep.
    - "grpo-step": two steps of trl's trainer (see `_grpo.compare_steps`).
    - "weight-sync": the names of the engine's tensors that differ from the trainer's after a sync,
      and how many differ before it (the control).
    """
    # Let torch take what it needs on the GPU by itself, before the engine's share is measured.
    importlib.import_module("torch").zeros(1, device="cuda")
    free_before = free_gpu_memory()
    policy = Policy(Path(tempfile.mkdtemp(prefix="rollout-")))
    trainer = _grpo.make_trainer(
        policy,
        policy.folder / "out",
        vllm_enable_sleep_mode=True,
        vllm_gpu_memory_utilization=_GPU_MEMORY_SHARE,
    )
    generation = trainer.vllm_generation
    generation.llm.wake_up()
    free_awake = free_gpu_memory()
    generation.llm.sleep(level=2)  # as trl does
    free_asleep = free_gpu_memory()
    taken = free_before - free_awake
    given_back = free_asleep - free_awake

    step = _grpo.compare_steps(policy, trainer)

    # The steps moved the trainer's weights, so bring the engine up to date. Then change every
    # weight: the engine must differ until the next sync, and not afterwards.
    generation.sync_weights()
    add_noise(trainer.model)
    differs_before_sync = compare_weights(trainer)  # name of a tensor -> whether it differs
    generation.sync_weights()
    differs = compare_weights(trainer)
    return {
        "sleep": {"taken_gib": taken / 2**30, "back": given_back / taken},
        "grpo-step": step,
        "weight-sync": {
            "compared": len(differs),
            "differing": [name for name in differs if differs[name]],
            "control_stale": sum(differs_before_sync.values()),
        },
    }


def free_gpu_memory() -> int:
    """Return the free bytes of the GPU's memory, after torch gave back what it does not use."""
    torch = importlib.import_module("torch")
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def compare_weights(trainer: Any) -> dict[str, bool]:
    """Return for each tensor of the engine, by name, whether it differs from the trainer's.

    The engine is vLLM's, in the trainer's process. The trainer's weights are converted to the
    engine's dtype, and every byte must be the same. Raises KeyError if the trainer has no weight of
    a tensor's name.
    """
    torch = importlib.import_module("torch")
    trained = dict(trainer.model.named_parameters())
    differs = {}
    for name, tensor in model_of_engine(trainer.vllm_generation.llm).named_parameters():
        # The name is `....MODULE.weight`. Some modules hold several of the trainer's, one after
        # another: `....qkv_proj.weight` has `....q_proj.weight` and two more.
        *_, module, _ = name.split(".")
        trainer_modules = _PACKED_MODULES.get(module, [module])
        trainer_names = [name.replace(module, other) for other in trainer_modules]
        weights = [trained[trainer_name].data for trainer_name in trainer_names]
        expected = torch.cat(weights).to(tensor.dtype)
        # vLLM rounds the size of the vocabulary up: rows beyond the trainer's do not count.
        rows = tensor.data[: len(expected)]
        bytes_of_engine = rows.contiguous().view(torch.uint8)
        bytes_of_trainer = expected.contiguous().view(torch.uint8)
        differs[name] = not bytes_of_engine.equal(bytes_of_trainer)
    return differs


MOST_OUTSIDE = 0.15
"""The largest share of ratios outside of 0.9 to 1.1. Measured on an H200: 5 % in bfloat16, 0.3 % in
float16, 10 % with an adapter four times as strong, and at least 72 % of each control."""
MOST_MEDIAN = 0.05
"""The largest median distance of a ratio from 1."""
LEAST_OUTSIDE_OF_CONTROL = 0.5
"""The smallest share of a control's ratios outside of 0.9 to 1.1."""
CONTROLS = (
    "control_truncated",
    "control_stale",
    "control_temperature",
    "control_template",
    "control_dropout",
    "control_token",
)
TENSORS = 15
"""How many tensors the engine has. It packs some of the policy's together."""


def judge_rollout(subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Pass if vLLM reports the probabilities that the same model has in transformers.

    The figures are about the ratio of both probabilities of each token: nearly all ratios must be
    near 1. Those of controls, which are wrong on purpose, must not be. An engine with a prefix
    cache must also have used it; one with the cache switched off must not. `subject` names the
    engine (a key of ENGINES).
    """
    at_least = dict.fromkeys(CONTROLS, LEAST_OUTSIDE_OF_CONTROL)
    equal = {}
    # With None, the engine is started without this setting, and vLLM decides.
    has_cache: bool | None = ENGINES[subject].get("enable_prefix_caching")
    if has_cache is True:
        at_least["cached"] = 1
    elif has_cache is False:
        equal["cached"] = 0
    return judge_figures(
        evidence,
        equal=equal,
        at_most={"outside": MOST_OUTSIDE, "median": MOST_MEDIAN},
        at_least=at_least,
    )


def judge_colocated_step(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge trl's training step on answers that vLLM sampled in the same process."""
    return judge_step(evidence)


def judge_sync(_subject: str, _expect: object, evidence: WeightsEvidence) -> Finding:
    """Judge that after a sync every tensor of the engine is the trainer's."""
    return judge_weights(evidence, TENSORS)


def judge_sleep(_subject: str, _expect: object, evidence: BehaviourEvidence) -> Finding:
    """Judge that the engine took at least 1 GiB of memory and gave 90 % of it back asleep."""
    return judge_figures(evidence, at_least={"taken_gib": 1.0, "back": 0.9})


CLAIMS = {
    **dict.fromkeys((f"framework/{subject}" for subject in ENGINES), judge_rollout),
    "framework/grpo-step": judge_colocated_step,
    "framework/weight-sync": judge_sync,
    "framework/sleep": judge_sleep,
    # Examples that no other probe may run beside.
    "gpu-examples": judge_limits,
}
NEXT_STEPS = {
    **dict.fromkeys(CLAIMS, _grpo.NEXT_STEP),
    "gpu-examples": _examples.NEXT_STEPS["gpu-examples"],
}
