"""How an example is run: its commands, in a copy of its folder, within its time."""

from pathlib import Path
from typing import Any

import pytest

from validate.checks._examples import first_visible_gpu
from validate.examples import run as running
from validate.examples.run import ExampleError, run


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in place of examples/, with an example named `one`."""
    folder = tmp_path / "sources"
    (folder / "one").mkdir(parents=True)
    (folder / "one" / "c.yaml").write_text("model: m\nout: out\n")
    monkeypatch.setattr(running, "EXAMPLES", folder)
    return folder


def example_with(*commands: str, seconds: float = 60) -> dict[str, Any]:
    """Return the row of the example `one`, with these commands and this limit for all of them."""
    return {
        "folder": "one",
        "commands": commands,
        "config": "c.yaml",
        "adapter": "programs",
        "seconds": seconds,
    }


def test_commands_run_in_a_copy_one_after_another(examples: Path, tmp_path: Path) -> None:
    write_result = """sh -c 'mkdir out && echo "{\\"losses\\": [1.5]}" > out/result.json'"""
    example = example_with(write_result, "test -f out/result.json")

    finished_run = run(example, tmp_path / "place", "cpu")

    assert finished_run.result() == {"losses": [1.5]}
    assert finished_run.model == tmp_path / "place" / "examples" / "one" / "m"
    assert finished_run.inductor_modules == 0
    assert not (examples / "one" / "out").exists()


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        pytest.param(
            "a line\\nValueError: no such model\\nbye",
            "ended with status 3: ValueError: no such model",
            id="the exception",
        ),
        pytest.param(
            "[rank0]: AssertionError: device is required\\nChildFailedError: x",
            "device is required",
            id="a rank's exception before the launcher's",
        ),
        pytest.param(
            "one\\ntwo\\nthree\\nfour", "two | three | four", id="the last lines without one"
        ),
    ],
)
@pytest.mark.usefixtures("examples")
def test_a_command_that_fails_is_an_error_with_the_cause_from_its_log(
    tmp_path: Path, log: str, cause: str
) -> None:
    command = f"""sh -c 'printf "{log}"; exit 3'"""

    with pytest.raises(ExampleError) as raised:
        run(example_with(command), tmp_path / "place", "cpu")

    assert cause in str(raised.value)


@pytest.mark.usefixtures("examples")
def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match="`sleep 600` did not end in time"):
        run(example_with("sleep 600", seconds=0.1), tmp_path / "place", "cpu")


@pytest.mark.parametrize(
    ("environ", "gpu"),
    [({}, "0"), ({"CUDA_VISIBLE_DEVICES": "3,1"}, "3"), ({"CUDA_VISIBLE_DEVICES": ""}, "")],
)
def test_an_example_of_the_gpu_tier_gets_the_first_visible_gpu(
    environ: dict[str, str], gpu: str
) -> None:
    assert first_visible_gpu(environ) == gpu
