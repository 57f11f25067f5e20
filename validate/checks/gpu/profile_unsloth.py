"""framework of the unsloth profile: it imports and loads a model in 4-bit. unsloth does not import without a GPU."""

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from validate.checks._behaviour import judge_figures
from validate.claims import Claim
from validate.harness.forked import asked
from validate.harness.saved_llama import SavedLlama
from validate.judging import Finding

_BF16_FROM = (8, 0)


PROJECTIONS = 14


class ImportEvidence(TypedDict):
    device_type: str
    bf16_as_capable: bool


class LoadEvidence(TypedDict):
    """How the projections of a model that was loaded in 4-bit are stored."""

    projections: int
    dtypes: list[str]
    quant_types: list[str]


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, ImportEvidence | LoadEvidence]]:
    """Yield the evidence of the subjects asked for: unsloth import, unsloth 4-bit."""
    # unsloth patches transformers and peft, so it is imported before them.
    unsloth = importlib.import_module("unsloth")
    measures: Mapping[str, Callable[[], ImportEvidence | LoadEvidence]] = {
        "unsloth-import": lambda: _imported(unsloth),
        "unsloth-4-bit": lambda: _loaded(unsloth),
    }
    yield from asked(claims, measures)


def _imported(unsloth: Any) -> ImportEvidence:
    """Return the device that unsloth takes, and whether it takes bfloat16 where the GPU has it."""
    capability = importlib.import_module("torch").cuda.get_device_capability()
    supported = bool(unsloth.is_bfloat16_supported())
    return {"device_type": str(unsloth.DEVICE_TYPE), "bf16_as_capable": supported == (capability >= _BF16_FROM)}


def _loaded(unsloth: Any) -> LoadEvidence:
    """Load the tiny Llama, with a tokenizer made for it, through FastLanguageModel."""
    with tempfile.TemporaryDirectory(prefix="unsloth-") as folder:
        llama = SavedLlama(Path(folder), device="cuda")
        tokenizers = importlib.import_module("tokenizers")
        words = {f"w{number}": number for number in range(3, llama.shape.vocabulary)}
        words = {"<unk>": 0, "<s>": 1, "</s>": 2, **words}
        plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
        llama.transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
        ).save_pretrained(llama.folder)
        model, _ = unsloth.FastLanguageModel.from_pretrained(
            str(llama.folder), max_seq_length=llama.shape.positions, load_in_4bit=True
        )
        weights = [model.get_submodule(name).weight for name in llama.shape.projections]
        return {
            "projections": len(weights),
            "dtypes": sorted({str(weight.dtype) for weight in weights}),
            "quant_types": sorted({str(weight.quant_state.quant_type) for weight in weights}),
        }


def judge_import(_subject: str, _expect: object, evidence: ImportEvidence) -> Finding:
    """Judge that unsloth takes the GPU, in the precision that it has."""
    return judge_figures(evidence, equal={"device_type": "cuda", "bf16_as_capable": True})


def judge_load(_subject: str, _expect: object, evidence: LoadEvidence) -> Finding:
    """Judge that every projection is stored as NF4."""
    return judge_figures(
        evidence,
        equal={"dtypes": ["torch.uint8"], "quant_types": ["nf4"]},
        at_least={"projections": PROJECTIONS},
    )


CLAIMS = {"framework/unsloth-import": judge_import, "framework/unsloth-4-bit": judge_load}
