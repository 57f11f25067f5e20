"""resume: a training run that was interrupted can't go on, or goes on from another state than it was saved in.

With torch below 2.6, transformers 4.51 can't read back the random state that it saved, and from 4.52 on refuses to read
any checkpoint (CVE-2025-32434). Both say so only when a run is resumed.
A tiny Llama is trained with the Trainer and saved half-way. A second Trainer resumes there and must end with the same
weights; one that takes the saved weights alone, without the optimizer's state, must not.
"""

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness.forked import measure_claimed_subjects
from validate.harness.saved_llama import SavedLlama, make_trainer
from validate.judging import Finding

_STEPS, _HALF_WAY = 4, 2


ResumeEvidence = TypedDict(
    "ResumeEvidence",
    {"step": int, "steps after the checkpoint": int, "deviation": float, "control": float},
)
"""Steps of the whole run and of the resumed one; the largest differences of their weights."""


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ResumeEvidence]]:
    """Yield the evidence of `resume`."""
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        yield from measure_claimed_subjects(claims, {"trainer": lambda: _resumed(Path(folder))})


def _resumed(folder: Path) -> ResumeEvidence:
    """Compare a resumed run with a whole one, and (the control) one that has the saved weights alone."""
    llama = SavedLlama(folder / "model")
    whole, _ = _train(llama, llama.folder, folder / "out")
    half_way = folder / "out" / f"checkpoint-{_HALF_WAY}"
    resumed, ran = _train(llama, llama.folder, folder / "resumed", str(half_way))
    weights_alone, _ = _train(llama, half_way, folder / "control")
    return {
        "step": resumed.state.global_step,
        "steps after the checkpoint": ran,
        "deviation": _deviation(resumed, whole),
        "control": _deviation(weights_alone, whole),
    }


def _train(
    llama: SavedLlama, model: Path, out: Path, checkpoint: str | None = None
) -> tuple[Any, int]:
    """A Trainer that has trained, and how many steps it took."""
    transformers = importlib.import_module("transformers")
    # Rows that differ: a resumed run must go on with those that the first had not seen.
    rows = [
        {"input_ids": row, "labels": row} for row in llama.tokens.reshape(-1, llama.tokens.shape[1])
    ]
    rows += [
        {"input_ids": row["input_ids"].flip(0), "labels": row["labels"].flip(0)} for row in rows
    ]
    trained, taken = transformers.AutoModelForCausalLM.from_pretrained(model), list[int]()
    trained.register_forward_hook(lambda *_: taken.append(1))
    saving = {"save_strategy": "steps", "save_steps": _HALF_WAY}
    trainer = make_trainer(
        trained, out, rows, max_steps=_STEPS, per_device_train_batch_size=1, **saving
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, len(taken)


def _deviation(found: Any, wanted: Any) -> float:
    expected = wanted.model.state_dict()
    return max(
        float((value - expected[name]).abs().max())
        for name, value in found.model.state_dict().items()
    )


def judge(_subject: str, _expect: object, evidence: ResumeEvidence) -> Finding:
    """Judge that the resumed run went on where the first had stopped, and ended with the same weights."""
    return judge_figures(
        evidence,
        equal={"step": _STEPS, "steps after the checkpoint": _STEPS - _HALF_WAY},
        # The same steps on the same machine give the same numbers. This allows for threads.
        at_most={"deviation": 1e-6},
        at_least={"control": 1e-4},
    )


CLAIMS = {"resume": judge}
