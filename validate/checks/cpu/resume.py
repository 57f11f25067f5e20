"""resume: check that an interrupted training run goes on from the state that was saved.

With torch below 2.6, transformers 4.51 can't read back the random state that it saved, and from
4.52 on refuses to read any checkpoint (CVE-2025-32434). Both report it only when a run is resumed.
So a tiny Llama is trained with the Trainer and saved half-way. A second Trainer resumes there and
must end with the same weights. As a control, a third one starts from the saved weights without the
optimizer's state, and must end with others.
"""

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from validate.checks import Settings
from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness.forked import measure_claimed_subjects
from validate.harness.saved_llama import SavedLlama, make_trainer
from validate.judging import Finding
from validate.next_steps import pin

SETTINGS = Settings(begins_with_torch=True)

_STEPS, _HALF_WAY = 4, 2
"""The number of all training steps, and after how many of them a checkpoint is saved."""


ResumeEvidence = TypedDict(
    "ResumeEvidence",
    {
        "step": int,  # steps of the resumed run, with those before the checkpoint
        "steps after the checkpoint": int,
        "deviation": float,  # largest difference of any weight between resumed and whole run
        "control": float,  # the same of the control
    },
)
"""How a resumed training run differs from one that was not interrupted."""


class TrainingRun(NamedTuple):
    """A training run that has ended."""

    trainer: Any
    steps: int  # that were taken in this run


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ResumeEvidence]]:
    """Yield `trainer` and its evidence, if it is claimed."""
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        measures = {"trainer": lambda: compare_runs(Path(folder))}
        yield from measure_claimed_subjects(claims, measures)


def compare_runs(folder: Path) -> ResumeEvidence:
    """Train a whole run, a resumed one and the control in `folder`, and compare their weights.

    The control starts anew from the checkpoint's weights, without the optimizer's state, so that
    its weights must differ from those of the whole run.
    """
    llama = SavedLlama(folder / "model")
    whole = train(llama, llama.folder, folder / "out")
    # The Trainer has saved this checkpoint half-way.
    checkpoint = folder / "out" / f"checkpoint-{_HALF_WAY}"
    resumed = train(llama, llama.folder, folder / "resumed", checkpoint)
    control = train(llama, checkpoint, folder / "control")
    return {
        "step": resumed.trainer.state.global_step,
        "steps after the checkpoint": resumed.steps,
        "deviation": largest_difference(resumed.trainer.model, whole.trainer.model),
        "control": largest_difference(control.trainer.model, whole.trainer.model),
    }


def train(
    llama: SavedLlama, model_folder: Path, out: Path, checkpoint: Path | None = None
) -> TrainingRun:
    """Train the model in `model_folder` with the Trainer, which saves checkpoints in `out`.

    With `checkpoint`, a folder, the run goes on from there: its weights take the place of those in
    `model_folder`.
    """
    # Make all rows different, because a resumed run must go on with those that it has not seen.
    rows = []
    for tokens in llama.tokens:
        rows.append({"input_ids": tokens, "labels": tokens})
    for tokens in llama.tokens:
        rows.append({"input_ids": tokens.flip(0), "labels": tokens.flip(0)})

    transformers = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder)
    # Add an entry for each forward pass, to count them.
    forward_passes: list[None] = []
    model.register_forward_hook(lambda *_: forward_passes.append(None))
    trainer = make_trainer(
        model,
        out,
        rows,
        max_steps=_STEPS,
        per_device_train_batch_size=1,
        save_strategy="steps",
        save_steps=_HALF_WAY,
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    # Each step has one forward pass, so this is the number of steps that this run took itself.
    return TrainingRun(trainer, len(forward_passes))


def largest_difference(model: Any, other: Any) -> float:
    """Return the largest absolute difference of any weight of two models."""
    other_weights = other.state_dict()
    differences = []
    for name, weight in model.state_dict().items():
        difference = (weight - other_weights[name]).abs()
        differences.append(float(difference.max()))
    return max(differences)


def judge(_subject: str, _expect: object, evidence: ResumeEvidence) -> Finding:
    """Judge that the resumed run went on from the checkpoint, and ended as the whole run did."""
    return judge_figures(
        evidence,
        equal={"step": _STEPS, "steps after the checkpoint": _STEPS - _HALF_WAY},
        # The same steps on the same machine give the same numbers. This allows for threads.
        at_most={"deviation": 1e-6},
        at_least={"control": 1e-4},
    )


CLAIMS = {"resume": judge}
NEXT_STEPS = {
    "resume": f"{pin('another release of transformers or accelerate')}; until then, do not go on "
    "from checkpoints (`resume_from_checkpoint`) in this image"
}
