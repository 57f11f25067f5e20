"""P2 of the unsloth profile: it imports and loads a model in 4-bit. unsloth does not import without a GPU."""

import importlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from validate.checks._behaviour import BehaviourEvidence, judge
from validate.claims import Claim
from validate.harness.forked import asked
from validate.harness.saved_llama import SavedLlama

_BF16_FROM = (8, 0)


def measure(claims: Sequence[Claim]) -> Iterator[tuple[str, BehaviourEvidence]]:
    """Yield the evidence of the subjects asked for: unsloth import, unsloth 4-bit."""
    # unsloth patches transformers and peft, so it is imported before them.
    unsloth = importlib.import_module("unsloth")
    yield from asked(claims, {"unsloth import": lambda: _imported(unsloth), "unsloth 4-bit": lambda: _loaded(unsloth)})


def _imported(unsloth: Any) -> BehaviourEvidence:
    capability = importlib.import_module("torch").cuda.get_device_capability()
    supported = bool(unsloth.is_bfloat16_supported())
    return {"device_type": str(unsloth.DEVICE_TYPE), "bf16_as_capable": supported == (capability >= _BF16_FROM)}


def _loaded(unsloth: Any) -> BehaviourEvidence:
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


CLAIMS = {"P2": judge}
