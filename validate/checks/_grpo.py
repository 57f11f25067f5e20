"""A tiny policy, GRPO's step in plain torch, and trl's beside it: framework of the trl-vllm profile."""

import importlib
import math
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.checks._behaviour import BehaviourEvidence, judge_figures
from validate.examples.run import EXAMPLES
from validate.examples.trained import read_shape
from validate.harness.reference import Shape, llama_logits, relative_error
from validate.judging import Finding

QUESTIONS = (
    "What is 2 plus 3?",
    "Write the word moon backwards.",
    "Which word comes first?",
    "Count to nine, please.",
)
CONVERSATIONS = [[{"role": "user", "content": question}] for question in QUESTIONS]
GENERATIONS = 4
LENGTH = 512
_TEMPERATURE = 0.8
_EPSILON, _CAP = 0.2, 3.0
"""trl's defaults: where the policy's ratio is clipped, and from what ratio to the sampler on an answer is left out."""
_MOVE = 0.004
"""Of each weight, by its gradient's sign: the second step's ratios are then 0.5 to 2."""
_HEAD = 4.0
"""The head's weights are this much larger than drawn: the next token is rarely certain, and rarely any."""


class Policy:
    """The Llama and the tokenizer of examples/tiny.py, saved in a folder."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        tiny, torch = runpy.run_path(str(EXAMPLES / "tiny.py")), importlib.import_module("torch")
        self.folder, self.dtype, self.tokenizer = folder, getattr(torch, dtype), tiny["tokenizer"]()
        model = tiny["model"]()
        model.resize_token_embeddings(len(self.tokenizer))
        model.config.pad_token_id = (
            None  # its embedding gets no gradient, and here answers have it too
        )
        model.lm_head.weight.data.mul_(_HEAD)
        model.to(self.dtype).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def prompts(self, template: str | None = None) -> list[list[int]]:
        """Token ids of the questions, by the tokenizer's chat template or another."""
        texts = self.tokenizer.apply_chat_template(
            CONVERSATIONS, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        found: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return found


def log_probabilities(
    logits: Any, tokens: Any, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> Any:
    """Of each token, from the distribution that it was drawn from: scaled, cut to its support, normalised.

    logits: [..., vocabulary]; tokens: [...]. Temperature 0 is greedy, whose distribution is not scaled.
    """
    torch = importlib.import_module("torch")
    scaled = logits / (temperature or 1.0)
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[..., -1:], -math.inf)
    if top_p < 1.0:
        ordered, order = scaled.sort(-1, descending=True)
        likely = ordered.softmax(-1)
        beyond = (likely.cumsum(-1) - likely) >= top_p
        scaled = scaled.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -math.inf)
    return scaled.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def rewards(completion_ids: Sequence[Sequence[int]], **_others: object) -> list[float]:
    """What trl asks for: one number for each completion, here the share of its odd tokens."""
    return [sum(token % 2 for token in ids) / len(ids) for ids in completion_ids]


def trainer_of(policy: Policy, out: Path, adapters: Any = None, **settings: Any) -> Any:
    """trl's GRPOTrainer of the policy in float32, so that its step can be compared closely; or of adapters over it."""
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    settings |= {
        "per_device_train_batch_size": len(QUESTIONS) * GENERATIONS,
        "num_generations": GENERATIONS,
    }
    settings |= {
        "max_completion_length": 16,
        "temperature": _TEMPERATURE,
        "bf16": False,
        "report_to": [],
    }
    settings |= {"use_vllm": True, "vllm_max_model_length": LENGTH, "gradient_checkpointing": False}
    return trl.GRPOTrainer(
        model=str(policy.folder),
        reward_funcs=rewards,
        train_dataset=datasets.Dataset.from_dict({"prompt": CONVERSATIONS}),
        processing_class=policy.tokenizer,
        peft_config=adapters,
        args=trl.GRPOConfig(output_dir=str(out), **settings),
    )


class Row(NamedTuple):
    """A completion of the generation batch: token ids, log-probabilities as the sampler reported them."""

    prompt: Any
    completion: Any
    sampled: Any
    advantage: float


def step(policy: Policy, trainer: Any) -> Mapping[str, object]:
    """Two steps on one generation batch, the policy moved in between: trl's, and Liger's loss, against plain torch.

    `control_fixed`: the gradient without the policy's ratio; `control_uncorrected`: without the sampler's.
    """
    torch, shape = importlib.import_module("torch"), read_shape(policy.folder)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._prepare_inputs(
        [{"prompt": one} for one in CONVERSATIONS for _ in range(GENERATIONS)]
    )
    asked, answered = inputs["prompt_mask"].bool().cpu(), inputs["completion_mask"].bool().cpu()
    rows = [
        Row(
            inputs["prompt_ids"][number].cpu()[asked[number]],
            inputs["completion_ids"][number].cpu()[answered[number]],
            inputs["sampling_per_token_logps"][number].cpu().double()[answered[number]],
            float(inputs["advantages"][number]),
        )
        for number in range(len(asked))
    ]
    first, old = _against_plain(trainer, inputs, shape, rows, None)
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.sub_(_MOVE * parameter.grad.sign())
    second, _ = _against_plain(trainer, inputs, shape, rows, old)
    wanted = _advantages(rows)
    return {
        **{
            key: second[key] if key.startswith("control") else max(first[key], second[key])
            for key in first
        },
        "advantage_deviation": max(
            abs(row.advantage - one) for row, one in zip(rows, wanted, strict=True)
        ),
        "spread": max(wanted) - min(wanted),
        "sampler_ratios": [
            round(float(one), 4) for one in inputs["importance_sampling_ratio"].flatten()
        ],
    }


def _advantages(rows: Sequence[Row]) -> list[float]:
    """A reward less its group's mean, over its deviation: a group are the answers to one prompt."""
    given = (
        importlib.import_module("torch")
        .tensor(rewards([row.completion.tolist() for row in rows]))
        .double()
    )
    groups = [
        given[[one for one, other in enumerate(rows) if other.prompt.equal(row.prompt)]]
        for row in rows
    ]
    return [
        float((own - group.mean()) / (group.std() + 1e-4))
        for own, group in zip(given, groups, strict=True)
    ]


def _against_plain(
    trainer: Any,
    inputs: Mapping[str, Any],
    shape: Shape,
    rows: Sequence[Row],
    old: Sequence[Any] | None,
) -> tuple[dict[str, float], list[Any]]:
    """How far trl's and Liger's loss and gradient of one step are from plain torch; each token's log-probability."""
    torch = importlib.import_module("torch")
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    own = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    weights = trainer.model.state_dict()

    def apart(others: Mapping[str, Any]) -> float:
        flat = [
            torch.cat([one[name].cpu().double().flatten() for name in own]) for one in (own, others)
        ]
        return relative_error(*flat)

    wanted, plain, scores = plain_step(weights, shape, rows, old)
    liger, head = _liger(trainer, inputs)
    found = {
        "loss_deviation": abs(float(loss.detach()) - wanted),
        "gradient_deviation": apart(plain),
        "liger_loss_deviation": abs(liger - wanted),
        "liger_gradient_deviation": relative_error(head, plain["lm_head.weight"]),
        "control_fixed": apart(plain_step(weights, shape, rows, old, "policy")[1]),
        "control_uncorrected": apart(plain_step(weights, shape, rows, old, "sampler")[1]),
    }
    return found, scores


def plain_step(
    weights: Mapping[str, Any],
    shape: Shape,
    rows: Sequence[Row],
    old: Sequence[Any] | None,
    without: str = "",
) -> tuple[float, Mapping[str, Any], list[Any]]:
    """GRPO's loss (trl's `dapo`: the mean over all tokens), its gradient, and each token's log-probability, in float64.

    old: log-probabilities of the policy that sampled; None: this one did. without: the ratio that is taken for 1,
    `policy` (to the one that sampled) or `sampler`.
    """
    torch = importlib.import_module("torch")
    leaves = {
        name: weight.detach().cpu().double().requires_grad_() for name, weight in weights.items()
    }
    losses, scores = [], []
    for number, row in enumerate(rows):
        tokens = torch.cat((row.prompt, row.completion))
        logits = llama_logits(leaves, shape, tokens[None], torch.float64)[
            0, len(row.prompt) - 1 : -1
        ]
        score = log_probabilities(logits, row.completion, _TEMPERATURE)
        before = score.detach() if old is None else old[number]
        ratio = (score - (score.detach() if without == "policy" else before)).exp()
        gain = torch.min(
            ratio * row.advantage, ratio.clamp(1 - _EPSILON, 1 + _EPSILON) * row.advantage
        )
        to_sampler = float((before - row.sampled).sum().exp())
        losses.append(
            -gain * (1.0 if without == "sampler" else to_sampler if to_sampler <= _CAP else 0.0)
        )
        scores.append(score.detach())
    loss = torch.cat(losses).mean()
    loss.backward()
    return float(loss.detach()), {name: leaf.grad for name, leaf in leaves.items()}, scores


def _liger(trainer: Any, inputs: Mapping[str, Any]) -> tuple[float, Any]:
    """Liger's loss of the same batch, and its gradient of the head's weight."""
    torch, chunked = (
        importlib.import_module("torch"),
        importlib.import_module("liger_kernel.chunked_loss"),
    )
    tokens, mask = (
        torch.cat((inputs[f"prompt_{of}"], inputs[f"completion_{of}"]), 1) for of in ("ids", "mask")
    )
    length = inputs["completion_ids"].shape[1]
    with torch.no_grad():
        hidden = trainer.model.model(input_ids=tokens, attention_mask=mask).last_hidden_state[
            :, -length - 1 : -1
        ]
    head = trainer.model.lm_head.weight.detach().clone().requires_grad_()
    objective = chunked.LigerFusedLinearGRPOLoss(
        0.0, compiled=False, use_ref_model=False, temperature=_TEMPERATURE
    )
    loss, _ = objective(
        hidden.detach().requires_grad_(),
        head,
        *(inputs[key] for key in ("completion_ids", "completion_mask", "advantages")),
        old_per_token_logps=inputs["old_per_token_logps"],
        vllm_is_ratio=inputs["importance_sampling_ratio"],
        num_items_in_batch=inputs["num_items_in_batch"],
    )
    loss.backward()
    return float(loss.detach()), head.grad


def judge_step(evidence: BehaviourEvidence, equal: Mapping[str, object] | None = None) -> Finding:
    """Judge float32 steps by float64's. The controls leave out a ratio: the policy's, or the sampler's."""
    return judge_figures(
        evidence,
        equal=equal,
        at_most={
            "loss_deviation": 1e-4,
            "gradient_deviation": 1e-3,
            "advantage_deviation": 1e-4,
            "liger_loss_deviation": 1e-4,
            "liger_gradient_deviation": 1e-3,
        },
        at_least={"spread": 1.0, "control_fixed": 0.1, "control_uncorrected": 0.003},
    )


class WeightsEvidence(TypedDict):
    """Tensors that a sampler got: how many, which differ from the trainer's, and how many from the first policy's."""

    compared: int
    differing: list[str]
    control_stale: int


def judge_weights(evidence: WeightsEvidence, count: int) -> Finding:
    """Judge that a sampler got so many tensors or more, each the trainer's byte by byte."""
    return judge_figures(
        evidence,
        equal={"differing": []},
        at_least={"compared": count, "control_stale": count},
    )
