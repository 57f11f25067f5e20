"""What is read of an example by axolotl, where no axolotl is needed for it."""

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from validate.examples import axolotl
from validate.examples.run import Run
from validate.examples.trained import read_preference_rows, read_stored_dtype

_RULER = "=" * 80


def run(config: Any, *commands: str, folder: Path = Path()) -> Run:
    example: Any = {"commands": commands}
    return Run(
        folder=folder, config=config, example=example, device="cpu", seconds=1.0, inductor_modules=0
    )


_ASKED = f"Give me an instruction: \n{_RULER}\n<s>Write a response.\n\n### Response:\n"


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        (f"{_ASKED}It is 5.</s>\n{_RULER}\nGive me an instruction: \n{_RULER}\n", 8),
        (f"{_ASKED}</s>\n{_RULER}\nGive me an instruction: \n{_RULER}\n", 0),
        (f"Give me an instruction: \n{_RULER}\n", 0),
    ],
)
def test_an_answer_is_what_stands_after_the_question_and_before_the_ruler(
    text: str, characters: int
) -> None:
    assert axolotl.measure_answer(text) == characters


@pytest.mark.parametrize(
    ("command", "config", "ranks"),
    [
        ("axolotl train a.yaml", {}, 1),
        ("axolotl train a.yaml -- --num_processes=2", {}, 2),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train a.yaml", {}, 2),
        ("torchrun --nproc_per_node=2 -m axolotl.cli.train a.yaml", {}, 2),
        ("axolotl train a.yaml -- --num_processes=2", {"tensor_parallel_size": 2}, 1),
        ("axolotl train a.yaml -- --num_processes=2", {"context_parallel_size": 2}, 1),
    ],
)
def test_ranks_have_rows_of_their_own_unless_they_share_them(
    command: str, config: Any, ranks: int
) -> None:
    assert axolotl.count_data_ranks(run(config, "python3 ../tiny.py", command)) == ranks


@pytest.mark.parametrize(
    ("has_it", "config", "by_file"),
    [(False, {}, False), (True, {}, True), (True, {"merge_method": "legacy"}, False)],
)
def test_what_is_merged_into_goes_by_how_this_axolotl_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_it: bool, config: Any, by_file: bool
) -> None:
    package = tmp_path / "axolotl"
    (package / "cli" / "utils").mkdir(parents=True)
    (package / "__init__.py").touch()
    if has_it:
        (package / "cli" / "utils" / "lora_merge.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert axolotl.merges_file_by_file(config) is by_file


@pytest.mark.parametrize(("trl", "first"), [("0.27.0", []), ("1.9.0", [1])])
def test_prompts_begin_as_this_trl_begins_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trl: str, first: list[int]
) -> None:
    def tokenizer(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    tokenizer.bos_token_id, tokenizer.eos_token_id = 1, 2  # type: ignore[attr-defined]
    automatic = SimpleNamespace(
        AutoTokenizer=SimpleNamespace(from_pretrained=lambda _folder: tokenizer)
    )
    monkeypatch.setitem(sys.modules, "transformers", cast("Any", automatic))
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: trl)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}')
    ignored = [-100] * (len(first) + 1)
    chosen, rejected = (([*first, 97, end, 2], [*ignored, end, 2]) for end in (98, 99))
    assert read_preference_rows(tmp_path, tmp_path / "rows.jsonl") == [(chosen, rejected)]


def _safetensors(file: Path, dtype: str) -> None:
    rows = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]},
    }
    header = json.dumps(rows).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    ("config", "read_in"),
    [
        ({}, "float32"),
        ({"adapter": "lora"}, "bfloat16"),
        # bitsandbytes' releases differ in whether they round to what weights were quantised from.
        ({"adapter": "qlora", "load_in_4bit": True}, "float32"),
    ],
)
def test_whole_weights_are_reloaded_as_stored_and_a_base_as_it_was_trained_or_from_4_bits_in_float32(
    config: Any, read_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    model = SimpleNamespace(parameters=list, train=lambda: None)
    loads = SimpleNamespace(
        from_pretrained=lambda _saved, **options: asked.append(options["dtype"]) or model
    )
    fakes = {
        "torch": SimpleNamespace(float32="float32", bfloat16="bfloat16"),
        "transformers": SimpleNamespace(
            AutoModelForCausalLM=loads, BitsAndBytesConfig=lambda **_options: None
        ),
        "peft": SimpleNamespace(PeftModel=SimpleNamespace(from_pretrained=lambda base, _out: base)),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, cast("Any", fake))
    _safetensors(tmp_path / "model.safetensors", "F32")
    axolotl.load_result(run({**config, "base_model": "."}, folder=tmp_path), tmp_path, "bfloat16")
    assert asked == [read_in]


@pytest.mark.parametrize(
    ("stored", "found"),
    [(["BF16", "BF16"], "bfloat16"), (["F32"], "float32"), (["BF16", "F32"], None), ([], None)],
)
def test_weights_are_reloaded_in_what_they_were_saved_in(
    stored: list[str], found: str | None, tmp_path: Path
) -> None:
    """Rounded to another dtype, the reloaded model is not the saved one."""
    for number, dtype in enumerate(stored):
        _safetensors(tmp_path / f"{number}.safetensors", dtype)
    if found:
        assert read_stored_dtype(tmp_path) == found
    else:
        with pytest.raises(ValueError, match="is expected"):
            read_stored_dtype(tmp_path)
