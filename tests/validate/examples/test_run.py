"""How an example is run: its commands in a copy of its folder, within its time, with its last words where it fails."""

from pathlib import Path
from typing import Any

import pytest

from validate.checks._examples import first_visible_gpu
from validate.examples import run as running
from validate.examples.run import ExampleError, run


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of examples with one that leaves a result."""
    folder = tmp_path / "sources"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "c.yaml").write_text("model: m\nout: out\n")
    monkeypatch.setattr(running, "EXAMPLES", folder)
    return folder


def example(*commands: str, seconds: float = 60) -> dict[str, Any]:
    return {
        "folder": "one",
        "commands": commands,
        "config": "c.yaml",
        "adapter": "programs",
        "seconds": seconds,
    }


def test_commands_run_in_a_copy_one_after_another(examples: Path, tmp_path: Path) -> None:
    write = """sh -c 'mkdir out && echo "{\\"losses\\": [1.5]}" > out/result.json'"""
    done = run(example(write, "test -f out/result.json"), tmp_path / "place", "cpu")
    model = tmp_path / "place" / "examples" / "one" / "m"
    assert (done.result(), done.model, done.inductor_modules) == ({"losses": [1.5]}, model, 0)
    assert not (examples / "one" / "out").exists()


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (
            "a line\\nValueError: no such model\\nbye",
            "ended with status 3: ValueError: no such model",
        ),
        ("[rank0]: AssertionError: device is required\\nChildFailedError: x", "device is required"),
        ("one\\ntwo\\nthree\\nfour", "two | three | four"),
    ],
)
def test_the_last_words_of_a_command_that_fails_show(
    examples: Path, tmp_path: Path, printed: str, told: str
) -> None:
    command = f"""sh -c 'printf "{printed}"; exit 3'"""
    with pytest.raises(ExampleError) as raised:
        run(example(command), tmp_path / "place", "cpu")
    assert told in str(raised.value)


def test_a_command_that_hangs_is_ended(examples: Path, tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match="`sleep 600` did not end in time"):
        run(example("sleep 600", seconds=0.1), tmp_path / "place", "cpu")


def test_p2_is_of_one_gpu_whatever_the_machine_has() -> None:
    masks = ({}, {"CUDA_VISIBLE_DEVICES": "3,1"}, {"CUDA_VISIBLE_DEVICES": ""})
    assert [first_visible_gpu(mask) for mask in masks] == ["0", "3", ""]
