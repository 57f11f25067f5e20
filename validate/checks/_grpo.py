"""Compare steps of trl's GRPO trainer with plain torch, for a tiny policy."""

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
from validate.next_steps import pin_together

# The conversations of which a policy is asked, each several times.
QUESTIONS = (
    "What is 2 plus 3?",
    "Write the word moon backwards.",
    "Which word comes first?",
    "Count to nine, please.",
)
CONVERSATIONS = [[{"role": "user", "content": question}] for question in QUESTIONS]
GENERATIONS = 4
"""How many completions are sampled for each question: they are a group of GRPO."""
LENGTH = 512
"""The longest sequence that vLLM must be able to sample, in tokens."""
_TEMPERATURE = 0.8
# trl's defaults.
_EPSILON = 0.2
"""The ratio of the policy to the one that sampled is clipped to 1 - _EPSILON and 1 + _EPSILON."""
_CAP = 3.0
"""An answer is left out if the policy's probability of it, as trl computes it, is more than so many
times the one that the sampler reported."""
_MOVE = 0.004
"""How far each weight moves between the steps, by its gradient's sign. The ratios of the second
step are then 0.5 to 2."""
_HEAD = 4.0
"""The head's weights are multiplied by this, so that the next token is neither certain nor purely
random."""


class Policy:
    """The Llama and the tokenizer of examples/tiny.py, saved in a folder."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        """Make the tiny model and tokenizer of the examples, and save both to the folder.

        dtype: torch's name of the dtype in which the model is saved.
        """
        # Name -> function of tiny.py. `tokenizer` and `model` make a tokenizer and a model.
        tiny = runpy.run_path(str(EXAMPLES / "tiny.py"))
        torch = importlib.import_module("torch")
        self.folder = folder
        self.dtype = getattr(torch, dtype)
        self.tokenizer = tiny["tokenizer"]()

        model = tiny["model"]()
        model.resize_token_embeddings(len(self.tokenizer))
        # Torch gives the embedding of a padding token no gradient. Here the policy may answer with
        # that token, so it must be an ordinary one.
        model.config.pad_token_id = None
        model.lm_head.weight.data.mul_(_HEAD)
        model.to(self.dtype).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def prompts(self, template: str | None = None) -> list[list[int]]:
        """Return the token IDs of each question, by the tokenizer's chat template or another."""
        texts = self.tokenizer.apply_chat_template(
            CONVERSATIONS, chat_template=template, tokenize=False, add_generation_prompt=True
        )
        token_ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return token_ids


def log_probabilities(
    logits: Any, tokens: Any, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> Any:
    """Return the log-probability of each token in the distribution from which it was sampled.

    logits: [..., vocabulary].
    tokens: [...], as the result.
    temperature: divides the logits; 0 (greedy sampling) leaves them as they are.
    top_k: only so many of the most likely tokens are kept; 0: all.
    top_p: of these, the most likely ones are kept until they have this probability together.

    A token that is not kept has the log-probability -inf.
    """
    torch = importlib.import_module("torch")
    scaled = logits / (temperature or 1.0)
    if top_k:
        smallest_kept = scaled.topk(top_k).values[..., -1:]
        scaled = scaled.masked_fill(scaled < smallest_kept, -math.inf)
    if top_p < 1.0:
        ordered, order = scaled.sort(-1, descending=True)
        probabilities = ordered.softmax(-1)
        # A token is left out if those before it have enough probability together.
        is_left_out = (probabilities.cumsum(-1) - probabilities) >= top_p
        mask = torch.zeros_like(is_left_out).scatter(-1, order, is_left_out)
        scaled = scaled.masked_fill(mask, -math.inf)
    return scaled.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def rewards(completion_ids: Sequence[Sequence[int]], **_others: object) -> list[float]:
    """Return the reward of each completion: the share of its token IDs that are odd.

    trl calls this with further arguments, which are ignored.
    """
    shares = []
    for ids in completion_ids:
        odd_count = sum(token % 2 for token in ids)
        shares.append(odd_count / len(ids))
    return shares


def make_trainer(policy: Policy, out: Path, adapters: Any = None, **settings: Any) -> Any:
    """Return trl's GRPOTrainer of the policy, or of LoRA adapters over it.

    The trainer samples through vLLM, rewards by `rewards`, and computes in float32, so that its
    steps can be compared closely. `adapters` are peft's settings; None: all weights are trained.
    `settings` are further arguments of GRPOConfig.
    """
    trl, datasets = importlib.import_module("trl"), importlib.import_module("datasets")
    config = trl.GRPOConfig(
        output_dir=str(out),
        **settings,
        per_device_train_batch_size=len(QUESTIONS) * GENERATIONS,
        num_generations=GENERATIONS,
        max_completion_length=16,
        temperature=_TEMPERATURE,
        bf16=False,
        report_to=[],
        use_vllm=True,
        vllm_max_model_length=LENGTH,
        gradient_checkpointing=False,
    )
    return trl.GRPOTrainer(
        model=str(policy.folder),
        reward_funcs=rewards,
        train_dataset=datasets.Dataset.from_dict({"prompt": CONVERSATIONS}),
        processing_class=policy.tokenizer,
        peft_config=adapters,
        args=config,
    )


class Completion(NamedTuple):
    """One completion of a batch, on the CPU and without padding."""

    prompt: Any  # token IDs
    completion: Any  # token IDs
    sampler_scores: Any  # log-probability of each of its tokens, as the sampler reported it
    advantage: float  # as trl computed it


class PlainStep(NamedTuple):
    """A step of GRPO in plain torch."""

    loss: float
    gradients: Mapping[str, Any]  # by the name of the weight
    scores: list[Any]  # log-probabilities of the tokens of each completion


def compare_steps(policy: Policy, trainer: Any) -> Mapping[str, object]:
    """Take two steps of trl on one batch, and compare them and Liger's loss with plain torch.

    In the first step the policy is the one that sampled the batch, so the ratio of the two is 1.
    Then the weights are moved, so that in the second step the ratio matters. Returns the figures
    that judge_step compares with their limits, and the ratios of the policy to the sampler.
    """
    torch = importlib.import_module("torch")
    shape = read_shape(policy.folder)
    trainer.model.train()
    # trl's compute_loss divides by this number, which otherwise the training loop sets.
    trainer.current_gradient_accumulation_steps = 1
    batch = sample_batch(trainer)
    completions = read_completions(batch)

    # `old_scores`: the log-probabilities of the policy that sampled, before it is moved.
    first_deviations, old_scores = compare_step(trainer, batch, shape, completions, old_scores=None)
    # Move the policy away from the one that sampled, so that their ratio is no longer 1.
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.sub_(_MOVE * parameter.grad.sign())
    second_deviations, _ = compare_step(trainer, batch, shape, completions, old_scores)

    # Report the larger deviation of both steps. Controls count from the second step only: in the
    # first one the policy's ratio is 1, and leaving it out changes nothing.
    figures: dict[str, object] = {}
    for name in first_deviations:
        if name.startswith("control"):
            figures[name] = second_deviations[name]
        else:
            figures[name] = max(first_deviations[name], second_deviations[name])

    sampler_ratios = batch["importance_sampling_ratio"].flatten()
    return {
        **figures,
        **compare_advantages(completions),
        "sampler_ratios": [round(float(ratio), 4) for ratio in sampler_ratios],
    }


def sample_batch(trainer: Any) -> Mapping[str, Any]:
    """Let trl sample its completions of every conversation, and return its batch of them.

    trl also computes their advantages from the rewards.
    """
    examples = []
    for conversation in CONVERSATIONS:
        for _ in range(GENERATIONS):
            examples.append({"prompt": conversation})
    batch: Mapping[str, Any] = trainer._prepare_inputs(examples)
    return batch


def read_completions(batch: Mapping[str, Any]) -> list[Completion]:
    """Return the rows of a batch that trl prepared for GRPO, as Completions on the CPU.

    trl pads prompts and completions to the same length, and has masks of the tokens that count.
    Here the padding is removed.
    """
    prompt_masks = batch["prompt_mask"].bool().cpu()
    completion_masks = batch["completion_mask"].bool().cpu()
    completions = []
    for number in range(len(prompt_masks)):
        prompt_mask, completion_mask = prompt_masks[number], completion_masks[number]
        # The log-probability of each token, as the sampler reported it.
        scores = batch["sampling_per_token_logps"][number].cpu().double()
        completions.append(
            Completion(
                prompt=batch["prompt_ids"][number].cpu()[prompt_mask],
                completion=batch["completion_ids"][number].cpu()[completion_mask],
                sampler_scores=scores[completion_mask],
                advantage=float(batch["advantages"][number]),
            )
        )
    return completions


def compare_advantages(completions: Sequence[Completion]) -> dict[str, float]:
    """Return how far trl's advantages are from those computed here, and their spread.

    A completion is an answer that was sampled; its advantage says how much better it is than the
    others to the same prompt. The first figure is the largest difference, the second the range of
    the advantages computed here. Without a spread all completions would be equally good, and a step
    would teach nothing.
    """
    advantages = compute_advantages(completions)
    deviations = []
    for completion, advantage in zip(completions, advantages, strict=True):
        deviations.append(abs(completion.advantage - advantage))
    return {
        "advantage_deviation": max(deviations),
        "spread": max(advantages) - min(advantages),
    }


def compute_advantages(completions: Sequence[Completion]) -> list[float]:
    """Return the advantage of each completion, as GRPO defines it.

    That is its reward minus the mean of its group, divided by the group's standard deviation. The
    completions of one prompt are a group. Rewards are computed anew, from the completions' tokens.
    """
    torch = importlib.import_module("torch")
    token_ids = [completion.completion.tolist() for completion in completions]
    # trl computes rewards in float32, so round to that first.
    all_rewards = torch.tensor(rewards(token_ids)).double()

    advantages = []
    for completion, reward in zip(completions, all_rewards, strict=True):
        group_numbers = []
        for number, other in enumerate(completions):
            if other.prompt.equal(completion.prompt):
                group_numbers.append(number)
        group = all_rewards[group_numbers]
        # trl adds 1e-4, so that a group of equal rewards divides by no zero.
        advantages.append(float((reward - group.mean()) / (group.std() + 1e-4)))
    return advantages


def compare_step(
    trainer: Any,
    batch: Mapping[str, Any],
    shape: Shape,
    completions: Sequence[Completion],
    old_scores: Sequence[Any] | None,
) -> tuple[dict[str, float], list[Any]]:
    """Compare a GRPO step of trl's trainer, and of Liger, with the same step in plain torch.

    batch: what the trainer takes the step on.
    completions: the same, for plain torch, which computes with a model of this shape.
    old_scores: the log-probabilities of the tokens by the model that sampled them; None: the model
        has not changed since.

    Returns how far losses and gradients are apart, by name, and the log-probabilities of the tokens
    by the current model. Two controls are how far trl's gradient is from a wrong one, which lacks
    the policy's ratio (`control_fixed`) or the sampler's (`control_uncorrected`).
    """
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    weights = trainer.model.state_dict()

    plain = plain_step(weights, shape, completions, old_scores)
    # Compute two gradients that are wrong on purpose, each without one of the ratios.
    without_policy_ratio = plain_step(weights, shape, completions, old_scores, without="policy")
    without_sampler_ratio = plain_step(weights, shape, completions, old_scores, without="sampler")
    liger_loss, liger_head_gradient = compute_liger_loss(trainer, batch)
    plain_head_gradient = plain.gradients["lm_head.weight"]
    deviations = {
        "loss_deviation": abs(float(loss.detach()) - plain.loss),
        "gradient_deviation": gradient_error(gradients, plain.gradients),
        "liger_loss_deviation": abs(liger_loss - plain.loss),
        "liger_gradient_deviation": relative_error(liger_head_gradient, plain_head_gradient),
        "control_fixed": gradient_error(gradients, without_policy_ratio.gradients),
        "control_uncorrected": gradient_error(gradients, without_sampler_ratio.gradients),
    }
    return deviations, plain.scores


def gradient_error(gradients: Mapping[str, Any], exact: Mapping[str, Any]) -> float:
    """Return the relative error of all gradients together, as one long vector.

    Gradients and exact gradients are by the name of the weight.
    """
    torch = importlib.import_module("torch")
    vectors = []
    exact_vectors = []
    for name, gradient in gradients.items():
        vectors.append(gradient.cpu().double().flatten())
        exact_vectors.append(exact[name].cpu().double().flatten())
    return relative_error(torch.cat(vectors), torch.cat(exact_vectors))


def plain_step(
    weights: Mapping[str, Any],
    shape: Shape,
    completions: Sequence[Completion],
    old_scores: Sequence[Any] | None,
    without: str = "",
) -> PlainStep:
    """Compute GRPO's loss and its gradient in plain torch, in float64.

    The loss is trl's `dapo`, the mean over all tokens of

        -min(r * A, clip(r, 1 - epsilon, 1 + epsilon) * A) * s

    where r is the probability of a token by this policy, divided by that of the policy that
    sampled; A is the advantage of its completion; and s is the probability of the whole completion
    by the policy that sampled, divided by the one that the sampler reported. Above _CAP it is 0.

    `old_scores` are the log-probabilities of the policy that sampled; None: it is this one.
    `without` leaves out a ratio, as a control: `policy` (r) or `sampler` (s); empty: none.
    """
    torch = importlib.import_module("torch")
    leaves = {}
    for name, weight in weights.items():
        leaves[name] = weight.detach().cpu().double().requires_grad_()

    losses = []
    scores = []
    for number, completion in enumerate(completions):
        tokens = torch.cat((completion.prompt, completion.completion))
        logits = llama_logits(leaves, shape, tokens[None], torch.float64)[0]
        # The logits at a position are those of the next token.
        completion_logits = logits[len(completion.prompt) - 1 : -1]
        score = log_probabilities(completion_logits, completion.completion, _TEMPERATURE)
        old_score = score.detach() if old_scores is None else old_scores[number]

        # To leave out the policy's ratio, take the ratio to itself: it is 1, but has a gradient.
        reference = score.detach() if without == "policy" else old_score
        ratio = (score - reference).exp()
        clipped_ratio = ratio.clamp(1 - _EPSILON, 1 + _EPSILON)
        gain = torch.min(ratio * completion.advantage, clipped_ratio * completion.advantage)

        sampler_ratio = float((old_score - completion.sampler_scores).sum().exp())
        if without == "sampler":
            sampler_ratio = 1.0
        elif sampler_ratio > _CAP:
            sampler_ratio = 0.0
        losses.append(-gain * sampler_ratio)
        scores.append(score.detach())

    loss = torch.cat(losses).mean()
    loss.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items()}
    return PlainStep(float(loss.detach()), gradients, scores)


def compute_liger_loss(trainer: Any, batch: Mapping[str, Any]) -> tuple[float, Any]:
    """Return the GRPO loss of a batch as Liger computes it, and the gradient for the head's weight.

    Liger fuses the last linear layer (the head, which turns states into logits) with the loss.
    `batch` is as trl prepares it, `trainer` has the model.
    """
    torch = importlib.import_module("torch")
    chunked_loss = importlib.import_module("liger_kernel.chunked_loss")
    tokens = torch.cat((batch["prompt_ids"], batch["completion_ids"]), 1)
    mask = torch.cat((batch["prompt_mask"], batch["completion_mask"]), 1)
    length = batch["completion_ids"].shape[1]
    # Compute the states below the head, of all tokens.
    with torch.no_grad():
        output = trainer.model.model(input_ids=tokens, attention_mask=mask)
    # The state at a position is that of the next token.
    hidden = output.last_hidden_state[:, -length - 1 : -1]

    head = trainer.model.lm_head.weight.detach().clone().requires_grad_()
    # 0.0 is beta, the weight of the distance from a reference model: there is none.
    liger_loss = chunked_loss.LigerFusedLinearGRPOLoss(
        0.0, compiled=False, use_ref_model=False, temperature=_TEMPERATURE
    )
    loss, _ = liger_loss(
        hidden.detach().requires_grad_(),
        head,
        batch["completion_ids"],
        batch["completion_mask"],
        batch["advantages"],
        old_per_token_logps=batch["old_per_token_logps"],
        vllm_is_ratio=batch["importance_sampling_ratio"],
        num_items_in_batch=batch["num_items_in_batch"],
    )
    loss.backward()
    return float(loss.detach()), head.grad


def judge_step(evidence: BehaviourEvidence, equal: Mapping[str, object] | None = None) -> Finding:
    """Pass if training steps of trl's GRPO gave what plain torch gives.

    The steps were in float32 and compared with float64 (compare_steps), so a deviation may be as
    large as float32's rounding makes it. The controls, which are wrong on purpose, must be larger,
    and the advantages must differ by at least 1 (`spread`), or a step teaches nothing.

    `equal`: further figures, and the values that they must have.
    """
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
    """A comparison of the weights that a sampler got with those of the trainer."""

    compared: int  # number of tensors
    differing: list[str]  # names of tensors that are not the trainer's
    control_stale: int  # number of tensors that differ from those before the weights changed


def judge_weights(evidence: WeightsEvidence, count: int) -> Finding:
    """Judge that a sampler got at least `count` tensors, each equal to the trainer's."""
    return judge_figures(
        evidence,
        equal={"differing": []},
        at_least={"compared": count, "control_stale": count},
    )


NEXT_STEP = (
    f"{pin_together('trl, vllm and transformers')}; until then, "
    "train by GRPO without vLLM (`use_vllm=False`)"
)
