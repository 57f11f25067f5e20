"""The claims of an image's profile: what its frameworks must do, and which examples must train.

The checks are `framework`, `cpu-examples`, `gpu-examples` and `multigpu-examples`. What a framework
must measure, and how far it may deviate, stands in its check (validate/checks/*/profile_*.py).
Nothing here reads the image or the engine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from images.planning.image import Image
from images.validation.claims.context import ClaimContext, claim, reason_too_old
from images.validation.claims.examples import EXAMPLES, Example, expectation_of
from validate.claims import Claim


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """Something that a framework of a profile must do."""

    subject: str
    profiles: tuple[str, ...]
    probe: str
    statement: str
    catches: str
    """What goes wrong for a user where the claim does not hold."""
    needs: tuple[str, ...] = ()
    """Packages that the image must pin. Without one of them there is no claim."""
    extensions: str = ""
    """The package whose extensions it uses, compiled when the image is built. In an image without
    them the claim is unproven, and not required."""
    required: bool = True


TRANSFORMERS = ("transformers",)
AXOLOTL_MULTIGPU = ("axolotl-multigpu",)
COLOSSALAI = ("colossalai",)
UNSLOTH = ("unsloth",)
TRL_VLLM = ("trl-vllm",)

BEHAVIOURS = (
    Behaviour(
        subject="device-map",
        profiles=TRANSFORMERS,
        probe="cpu.profile_transformers",
        statement=(
            'device_map="auto" places a whole model,'
            " and what memory can't hold on disk, with the same numbers"
        ),
        catches="layers that are left on the meta device, or lost on their way to disk and back",
    ),
    Behaviour(
        subject="AXOLOTL_NCCL_TIMEOUT",
        profiles=AXOLOTL_MULTIGPU,
        probe="cpu.profile_axolotl",
        statement=(
            "two ranks wait for each other as long as AXOLOTL_NCCL_TIMEOUT says, without it 1800 s"
        ),
        catches="a long evaluation that ends in a timeout whatever the variable says",
    ),
    Behaviour(
        subject="ray-train",
        profiles=AXOLOTL_MULTIGPU,
        probe="cpu.profile_deepspeed",
        statement="ray[train] trains a torch model on two workers",
        catches="workers that each train alone",
        needs=("ray",),
    ),
    Behaviour(
        subject="colossalai-hybrid-adam",
        profiles=COLOSSALAI,
        probe="cpu.profile_colossalai",
        statement=(
            "HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on the CPU"
        ),
        catches="an extension that is compiled anew at run time, or takes other steps",
        extensions="colossalai",
    ),
    Behaviour(
        subject="colossalai-fused-adam",
        profiles=COLOSSALAI,
        probe="gpu.profile_optimizers",
        statement="HybridAdam, compiled with ColossalAI, takes the steps of torch's AdamW on a GPU",
        catches="an extension without machine code for this GPU",
        extensions="colossalai",
    ),
    Behaviour(
        subject="deepspeed-cpu-adam",
        profiles=AXOLOTL_MULTIGPU,
        probe="cpu.profile_deepspeed",
        statement="DeepSpeed's CPUAdam, compiled with it, takes the steps of torch's AdamW",
        catches="an extension that is compiled anew at run time, or takes other steps",
        extensions="deepspeed",
    ),
    Behaviour(
        subject="deepspeed-fused-adam",
        profiles=AXOLOTL_MULTIGPU,
        probe="gpu.profile_optimizers",
        statement=(
            "DeepSpeed's FusedAdam, compiled with it, takes the steps of torch's AdamW on a GPU"
        ),
        catches="an extension without machine code for this GPU",
        extensions="deepspeed",
    ),
    Behaviour(
        subject="unsloth-import",
        profiles=UNSLOTH,
        probe="gpu.profile_unsloth",
        statement="unsloth imports, and takes the precision that the GPU has",
        catches=(
            "unsloth that does not import beside this torch,"
            " or trains in float16 where bfloat16 is there"
        ),
    ),
    Behaviour(
        subject="grpo-step",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement=(
            "trl's GRPO step, and Liger's loss, are plain torch's,"
            " with vLLM sampling in the same process"
        ),
        catches="a loss without a ratio: the policy's to itself a step before, or to the sampler",
    ),
    Behaviour(
        subject="grpo-arguments",
        profiles=TRL_VLLM,
        probe="cpu.profile_trl_vllm",
        statement=(
            "vLLM takes what trl's GRPO gives and asks,"
            " and on such answers its step is plain torch's"
        ),
        catches="a vLLM that does not know an argument of this trl's",
    ),
    Behaviour(
        subject="server-weights",
        profiles=TRL_VLLM,
        probe="cpu.profile_trl_vllm",
        statement="what trl packs for a vLLM server are the policy's weights, byte by byte",
        catches="a server that gets stale weights",
    ),
    Behaviour(
        subject="server-adapters",
        profiles=TRL_VLLM,
        probe="cpu.profile_trl_vllm",
        statement="the same where it trains adapters",
        catches=(
            "trl 1.11 to 1.16: the server gets weights without the adapters,"
            " and samples from the first policy"
        ),
        # These releases have the fault.
        required=False,
    ),
    Behaviour(
        subject="weight-sync",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement="after a sync, every tensor of vLLM's engine is the trainer's, byte by byte",
        catches="a tensor that a sync leaves out",
    ),
    Behaviour(
        subject="sleep",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement="an engine that sleeps gives its memory back",
        catches="training that runs out of memory beside an engine that only seems to sleep",
    ),
    Behaviour(
        subject="rollout-eager",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement=(
            "vLLM's log-probabilities are the trainer's, whatever is sampled, and after a sync"
        ),
        catches=(
            "a sampler and a trainer that disagree on what was likely:"
            " temperature, template, end token, dropout"
        ),
    ),
    Behaviour(
        subject="rollout-graphs",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement="the same with CUDA graphs, torch.compile and a prefix cache",
        catches="a cache that still holds prompts of the weights before a sync",
    ),
    Behaviour(
        subject="rollout-float16",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement="the same in float16",
        catches="the same in float16",
    ),
    Behaviour(
        subject="rollout-lora",
        profiles=TRL_VLLM,
        probe="gpu.profile_trl_vllm",
        statement="the same with a LoRA adapter on both sides; the stale one is none",
        catches="an adapter that the sampler does not apply",
    ),
)
"""In the order that reports show."""


def profile_claims(context: ClaimContext) -> Iterator[Claim]:
    """Yield the claims of an image's profile; none if the image has no profile."""
    profile = context.image.name.profile
    for behaviour in BEHAVIOURS:
        if profile in behaviour.profiles:
            yield from behaviour_claims(context, behaviour)
    for example in EXAMPLES:
        if profile in example.family.profiles:
            yield from example_claims(context, example)


def behaviour_claims(context: ClaimContext, behaviour: Behaviour) -> Iterator[Claim]:
    """Yield the claim that a framework behaves in the image as its row in this file says.

    There is no claim if the image does not pin the packages that the behaviour needs. If a wheel
    with the compiled extensions could not be had, the claim is unproven, and not required.
    """
    if not all(context.image.pin(name) for name in behaviour.needs):
        return
    reason_without_extensions = ""
    if behaviour.extensions:
        # Images with these versions never have the extensions, so there is nothing to claim.
        if not plans_extensions(context.image, behaviour.extensions):
            return
        reason_without_extensions = find_reason_without_extensions(context, behaviour.extensions)

    tier = behaviour.probe.partition(".")[0]
    yield claim(
        "framework",
        behaviour.subject,
        behaviour.probe,
        behaviour.statement,
        required=behaviour.required and not reason_without_extensions,
        unproven=reason_without_extensions or reason_without_gpus(context, tier),
    )


def example_claims(context: ClaimContext, example: Example) -> Iterator[Claim]:
    """Yield the claims that an example program trains correctly, for example on the CPU and a GPU.

    Yields nothing if the image lacks a package that the example needs. If it lacks only the
    compiled kernels of such a package, the claims are not required.
    """
    if not all(context.image.pin(name) for name in example.needs):
        return
    reason_without_kernels = ""
    if example.extensions:
        reason_without_kernels = find_reason_without_kernels(context, example)

    # `bounds` say how far results may be from plain torch's in this tier.
    for tier, bounds in example.tiers.items():
        unproven = reason_without_kernels or reason_without_gpus(context, tier)
        yield claim(
            f"{tier}-examples",
            example.subject,
            example.probe or f"{tier}.examples",
            example.statement,
            expectation_of(example, bounds),
            required=not reason_without_kernels,
            unproven=unproven,
            not_applicable=reason_not_run(context, example, tier),
        )


def reason_not_run(context: ClaimContext, example: Example, tier: str) -> str:
    """Return why an example is not run in a tier on this host; empty if it is."""
    if tier == "cpu" and context.on_gpu and "gpu" in example.tiers:
        return "not run: gpu-examples has the same example on the GPU that is here"
    if context.inventory is None:
        return ""
    return reason_too_old(context.inventory.gpus, example.capability)


def reason_without_gpus(context: ClaimContext, tier: str) -> str:
    """Return why this host has too few GPUs for a tier; empty if it has enough."""
    if tier == "gpu":
        return context.no_gpu
    if tier == "multigpu":
        return context.no_second_gpu
    return ""


def plans_extensions(image: Image, package: str) -> bool:
    """Return whether the image is planned with a package's compiled extensions."""
    pin = image.pin(package)
    return pin is not None and bool(pin.extension_source)


def find_reason_without_extensions(context: ClaimContext, package: str) -> str:
    """Return why the image lacks a package's compiled extensions; empty if it has them."""
    pin = context.image.pin(package)
    return context.reason_without_extensions(pin) if pin else ""


def find_reason_without_kernels(context: ClaimContext, example: Example) -> str:
    """Return why an example cannot have the kernels of its extensions; empty if it can.

    It can if the image has them compiled, or if it is a devel image: that has nvcc, and they are
    compiled when they are first used.
    """
    if context.image.name.devel:
        return ""
    package = example.extensions
    is_planned = plans_extensions(context.image, package)
    are_missing = bool(find_reason_without_extensions(context, package))
    if is_planned and not are_missing:
        return ""
    # The row of the example has a sentence for this case.
    return example.without_nvcc
