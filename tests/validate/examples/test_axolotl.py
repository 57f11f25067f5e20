"""What is read of an example by axolotl, as far as axolotl need not be installed for it."""

import importlib.metadata
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from validate.examples import axolotl
from validate.examples.run import Run
from validate.examples.trained import IGNORED, read_preference_rows, read_stored_dtype


def run_with(config: Any, *commands: str, folder: Path = Path()) -> Run:
    """Return the run of an example with this configuration and these commands."""
    return Run(
        folder=folder,
        config=config,
        example={"commands": commands},
        device="cpu",
        seconds=1.0,
        inductor_modules=0,
    )


# What `axolotl inference` prints: a question, the prompt, the answer, and the next question.
RULER = "=" * 80
QUESTION = f"Give me an instruction: \n{RULER}\n"
PROMPT = "<s>Write a response.\n\n### Response:\n"


@pytest.mark.parametrize(
    ("output", "characters"),
    [
        pytest.param(f"{QUESTION}{PROMPT}It is 5.</s>\n{RULER}\n{QUESTION}", 8, id="answer"),
        pytest.param(f"{QUESTION}{PROMPT}</s>\n{RULER}\n{QUESTION}", 0, id="empty answer"),
        pytest.param(QUESTION, 0, id="no prompt"),
    ],
)
def test_an_answer_stands_between_the_prompt_and_the_ruler(output: str, characters: int) -> None:
    assert axolotl.measure_answer(output) == characters


TRAIN_ON_TWO = "axolotl train a.yaml -- --num_processes=2"


@pytest.mark.parametrize(
    ("command", "config", "ranks"),
    [
        ("axolotl train a.yaml", {}, 1),
        (TRAIN_ON_TWO, {}, 2),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train a.yaml", {}, 2),
        ("torchrun --nproc_per_node=2 -m axolotl.cli.train a.yaml", {}, 2),
        (TRAIN_ON_TWO, {"tensor_parallel_size": 2}, 1),
        (TRAIN_ON_TWO, {"context_parallel_size": 2}, 1),
    ],
)
def test_each_process_has_rows_of_its_own_unless_processes_share_them(
    command: str, config: Any, ranks: int
) -> None:
    assert axolotl.count_data_ranks(run_with(config, "python3 ../tiny.py", command)) == ranks


@pytest.mark.parametrize(
    ("has_lora_merge", "config", "is_by_file"),
    [(False, {}, False), (True, {}, True), (True, {"merge_method": "legacy"}, False)],
)
def test_an_axolotl_with_lora_merge_merges_file_by_file_unless_asked_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_lora_merge: bool,
    config: Any,
    is_by_file: bool,
) -> None:
    package = tmp_path / "axolotl"
    (package / "cli" / "utils").mkdir(parents=True)
    (package / "__init__.py").touch()
    if has_lora_merge:
        (package / "cli" / "utils" / "lora_merge.py").touch()
    monkeypatch.syspath_prepend(tmp_path)

    assert axolotl.merges_file_by_file(config) is is_by_file


BEGIN_TOKEN, END_TOKEN = 1, 2


def tokenise_letters(text: str, add_special_tokens: bool) -> dict[str, list[int]]:
    """Stand in for a tokenizer: a letter's token is its number in ASCII."""
    return {"input_ids": [ord(letter) for letter in text]}


@pytest.mark.parametrize(("trl_version", "begin"), [("0.27.0", []), ("1.9.0", [BEGIN_TOKEN])])
def test_a_prompt_has_a_begin_token_from_trl_1_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trl_version: str, begin: list[int]
) -> None:
    tokenizer: Any = tokenise_letters
    monkeypatch.setattr(tokenizer, "bos_token_id", BEGIN_TOKEN, raising=False)
    monkeypatch.setattr(tokenizer, "eos_token_id", END_TOKEN, raising=False)
    loader = SimpleNamespace(from_pretrained=lambda _folder: tokenizer)
    transformers: Any = SimpleNamespace(AutoTokenizer=loader)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: trl_version)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}')

    rows = read_preference_rows(tmp_path, file)

    prompt = [*begin, ord("a")]
    no_labels = [IGNORED] * len(prompt)
    chosen, rejected = [ord("b"), END_TOKEN], [ord("c"), END_TOKEN]
    assert rows == [
        ((prompt + chosen, no_labels + chosen), (prompt + rejected, no_labels + rejected))
    ]


def write_safetensors(file: Path, dtype: str) -> None:
    """Write a safetensors file with one empty weight of this dtype."""
    rows = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]},
    }
    header = json.dumps(rows).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize(
    ("config", "loaded_dtype"),
    [
        pytest.param({}, "float32", id="all weights as they are stored"),
        pytest.param({"adapter": "lora"}, "bfloat16", id="a base as it was trained"),
        # bitsandbytes' releases differ in whether they round to what weights were quantised from.
        pytest.param(
            {"adapter": "qlora", "load_in_4bit": True}, "float32", id="a 4-bit base from float32"
        ),
    ],
)
def test_a_result_is_loaded_in_the_dtype_that_it_was_computed_with(
    config: Any, loaded_dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtypes: list[object] = []
    model = SimpleNamespace(parameters=list, train=lambda: None)

    def from_pretrained(_folder: Path, **options: Any) -> Any:
        dtypes.append(options["dtype"])
        return model

    fakes = {
        "torch": SimpleNamespace(float32="float32", bfloat16="bfloat16"),
        "transformers": SimpleNamespace(
            AutoModelForCausalLM=SimpleNamespace(from_pretrained=from_pretrained),
            BitsAndBytesConfig=lambda **_options: None,
        ),
        "peft": SimpleNamespace(PeftModel=SimpleNamespace(from_pretrained=lambda base, _out: base)),
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, cast("Any", fake))
    write_safetensors(tmp_path / "model.safetensors", "F32")
    run = run_with({**config, "base_model": "."}, folder=tmp_path)

    axolotl.load_result(run, out=tmp_path, training_dtype="bfloat16")

    assert dtypes == [loaded_dtype]


@pytest.mark.parametrize(
    ("stored", "dtype"), [(["BF16", "BF16"], "bfloat16"), (["F32"], "float32")]
)
def test_the_dtype_of_a_folder_is_that_of_all_its_files(
    stored: list[str], dtype: str, tmp_path: Path
) -> None:
    """Rounded to another dtype, the reloaded model is not the saved one."""
    for number, stored_dtype in enumerate(stored):
        write_safetensors(tmp_path / f"{number}.safetensors", stored_dtype)

    assert read_stored_dtype(tmp_path) == dtype


@pytest.mark.parametrize("stored", [["BF16", "F32"], []], ids=["two dtypes", "no file"])
def test_a_folder_without_one_dtype_is_an_error(stored: list[str], tmp_path: Path) -> None:
    for number, stored_dtype in enumerate(stored):
        write_safetensors(tmp_path / f"{number}.safetensors", stored_dtype)

    with pytest.raises(ValueError, match="is expected"):
        read_stored_dtype(tmp_path)
