"""Each known error finds its own row of hints.yaml; what only resembles it or is well does not."""

import difflib
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BeforeValidator, Field

from images.config import yamlfile
from images.config.facts import Row, Sentence
from images.validation.containers import suite_files
from tests.support import suite_folder
from tests.support.checkout import ROOT
from tests.support.commands import call
from validate import hints
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import ClaimVerdict, Verdict, explain
from validate.judging import Status


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a/b#1, a/b#2", ["  source: a/b#1, a/b#2"]),
        ("a/b#1, a/b#2, a/b#3, a/b#4, a/b#5", ["  source: a/b#1, a/b#2, a/b#3 and 2 more"]),
        # The name of a page that is only known here.
        ("seed:transformers-cuda", []),
        (
            "seed:colossalai-cuda, https://docs.nvidia.com/x",
            ["  source: https://docs.nvidia.com/x"],
        ),
    ],
)
def test_people_see_three_sources_that_they_can_look_up(source: str, line: list[str]) -> None:
    assert list(hints.describe_sources(source)) == line


def regular_expression(pattern: str) -> str:
    """Return the pattern; raise ValueError if it is no regular expression."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
    return pattern


class HintRow(Row):
    """A row of hints.yaml with all its keys, also those that are only for these tests."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    pattern: Annotated[str, BeforeValidator(regular_expression)]
    examples: list[Sentence] = Field(min_length=1)
    near_miss: Sentence
    yields_to: Annotated[str, Field(pattern=r"^(any|[a-z0-9-]+( [a-z0-9-]+)*)$")] | None = None
    frame: Annotated[str, BeforeValidator(regular_expression)] = ""
    cause: Sentence
    fix: Sentence
    source: Annotated[
        str, Field(pattern=r"\w/[\w.-]+#\d|https?://|seed:\w|\.(py|pth)\b|\bseen (in|on|with) ")
    ]
    """`OWNER/REPOSITORY#NUMBER`, a page, `seed:PAGE`, the file that raises it, or where we saw it.
    """


class Table(Row):
    hints: list[HintRow] = Field(min_length=1)


def validated_rows() -> tuple[HintRow, ...]:
    """Every row of hints.yaml; a row with a wrong key or value is an error that names its line."""
    file = yamlfile.parse(hints.TABLE.name, hints.TABLE.read_text(encoding="utf-8"))
    return tuple(yamlfile.validated(Table, file, "docs/hints.md").hints)


ROWS = validated_rows()
KNOWN = {hint.id: hint for hint in hints.known()}
FIXES = "\n".join(row.fix for row in ROWS)
EXAMPLES = [(row.id, example) for row in ROWS for example in row.examples]
COMMON_ERRORS = {
    "axolotl-cuda-gpu": 5,
    "axolotl-multi-gpu": 5,
    "colossalai-cuda": 6,
    "transformers-cuda": 4,
}
"""Reference page -> how many rows of hints.yaml explain its "Common Errors"."""
THREADS = """
marin#7344 cutlass#3259 pytorch#134929 pytorch#119932 pytorch#80637 flash-attention#1832
flash-attention#975 flash-attention#1708 flash-attention#1638 flash-attention#2168 xformers#1329
axolotl#2525 nvidia-docker#1256 pytorch#116696 pytorch#140765 DeepSpeed#1886
"""
"""Bug reports whose errors must be explained."""


def ids_of_hints(text: str) -> list[str]:
    """The rows that explain a text."""
    return [hint.id for hint in hints.find([text])]


def test_each_row_has_a_name_of_its_own() -> None:
    assert len(KNOWN) == len(ROWS)


@pytest.mark.parametrize(
    ("row", "example"), EXAMPLES, ids=[f"{row}-{n}" for n, (row, _) in enumerate(EXAMPLES)]
)
def test_each_example_finds_its_own_row_first(row: str, example: str) -> None:
    assert ids_of_hints(example) == [row]
    assert ids_of_hints(example.upper()) == [row], "whatever the case"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_no_row_matches_what_only_resembles_its_error(row: HintRow) -> None:
    """A near miss is the same error of another package, version or cause."""
    likeness = []
    for example in row.examples:
        matcher = difflib.SequenceMatcher(None, row.near_miss, example, autojunk=False)
        likeness.append(matcher.ratio())

    near_misses = hints.lines_with_frames([row.near_miss]).items()
    assert not any(KNOWN[row.id].matches(line, frame) for line, frame in near_misses)
    assert max(likeness) >= 0.5, "it misses by far"


@pytest.mark.parametrize("row", [row for row in ROWS if row.yields_to], ids=lambda row: row.id)
def test_a_row_yields_to_rows_that_are_there_and_do_not_yield_in_turn(row: HintRow) -> None:
    """Else two rows could hide each other, and nothing would be shown."""
    if row.yields_to == "any":
        return
    to_visit = (row.yields_to or "").split()
    while to_visit:
        cause = KNOWN[to_visit.pop()]
        assert cause.yields_to != "any"
        assert cause.id != row.id
        to_visit += cause.yields_to.split()


GENERAL_ROWS = """
nccl-cuda-error compile-failed cuda-error uncaught-exception torchao-torch rank-failed
signal-from-outside engine-core ray-died ray-creation killed segfault dataloader-worker
pin-memory-thread map-died distributed-timeout store-timeout rendezvous ddp-params-differ
nccl-remote abort-at-exit runner-lost pyxis wheel-failed
""".split()
"""Rows of lines which say that a call or a process failed, and not why."""


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("nccl-nvls", "transport/nvls.cc:274 NCCL WARN Cuda failure 1 'invalid argument'"),
        ("no-c-compiler", "RuntimeError: Failed to find C compiler. Please specify via CC"),
        ("cuda-out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        ("ptxas-arch", "ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'"),
        ("tokenizer-5", "AttributeError: Qwen2Tokenizer has no attribute encode_plus"),
    ],
)
def test_a_general_line_is_only_explained_where_no_other_names_the_cause(
    cause: str, line: str
) -> None:
    examples = dict(EXAMPLES)
    general = "\n".join(examples[row] for row in GENERAL_ROWS)

    # The order of the lines makes no difference.
    assert ids_of_hints(f"{general}\n{line}") == [cause]
    assert ids_of_hints(f"{line}\n{general}") == [cause]
    assert ids_of_hints(general) == GENERAL_ROWS[:3]


def test_a_row_that_does_not_say_why_a_process_ended_yields_to_those_that_do() -> None:
    """An actor's death hid its AttributeError, and memory was blamed (es-at-scale#41)."""
    unexplained = re.compile(r"(process|worker|rank|job)\b[^.]*(not say wh(y|ose)|why,? stands)")
    for row in ROWS:
        if unexplained.search(row.cause):
            assert row.yields_to == "any", row.id


@pytest.mark.parametrize(
    "warning",
    """
    bnb-optimizer-old ds-aio dynamo-limit-slow generation-config-unused link-32bit nccl-bent
    rope-keys-unused trl-logprobs-mode
    """.split(),
)
@pytest.mark.parametrize("end", ["store-timeout", "ddp-params-differ", "runner-lost"])
def test_a_harmless_warning_does_not_hide_how_a_run_ended(warning: str, end: str) -> None:
    examples = dict(EXAMPLES)

    assert ids_of_hints(f"{examples[warning]}\n{examples[end]}") == [warning, end]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("v2/nvcr.io/nvidia/pytorch/manifests/25.04-py3", ["enroot-registry-name"]),
        # Files, which were meant as such.
        ("v2/library/image.sqsh/manifests/latest", ["enroot-manifest"]),
        ("v2/images.new/image.sqsh/manifests/latest", ["enroot-manifest"]),
        # A name with a dot that is no host's.
        ("v2/library/llama.cpp/manifests/latest", ["enroot-manifest"]),
        ("v2/nvidia/cuda/manifests/latest", ["enroot-manifest"]),
    ],
)
def test_a_host_in_an_image_of_docker_hub_stands_before_other_names(
    line: str, rows: list[str]
) -> None:
    url = f"https://registry-1.docker.io/{line}"

    assert ids_of_hints(f"[ERROR] URL {url} returned error code: 401 Unauthorized") == rows


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("'/opt/venv/bin/python3.12', 'train.py', '--epochs', '3'", ["rank-failed"]),
        ("'/opt/venv/bin/python', '-u', 'src/train.py'", ["rank-failed"]),
        ("'deepspeed', '--num_gpus', '8', 'train.py'", ["rank-failed"]),
        ("'/tmp/v/bin/python3', '-Im', 'ensurepip', '--upgrade'", []),
        ("'/opt/venv/bin/python', 'setup.py', 'bdist_wheel'", []),
        ("'/usr/bin/python3', '/src/x/setup.py', 'egg_info'", []),
        ("'/usr/bin/python3', '/usr/bin/pip', 'install', 'x'", []),
    ],
)
def test_a_program_that_installs_is_no_rank_of_a_run(command: str, rows: list[str]) -> None:
    line = f"subprocess.CalledProcessError: Command '[{command}]' returned non-zero exit status 1."

    assert ids_of_hints(line) == rows


@pytest.mark.parametrize("state", ["OOMKilled=false", "OOMKilled=0", '"OOMKilled": false'])
def test_a_container_that_was_not_killed_for_its_memory_gets_no_hint(state: str) -> None:
    assert ids_of_hints(f"Status=exited {state} ExitCode=1") == []


NVIDIA_SMI = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
NO_GPU_IN_TORCH = "RuntimeError: No CUDA GPUs are available"
NEWER_DRIVER = """\
NVRM: The NVIDIA GeForce GTX 980 GPU installed in this system is
NVRM:  supported through the NVIDIA 580.xx Legacy drivers. Please
NVRM:  visit http://www.nvidia.com/object/unix.html for more
NVRM:  information.  The 610.43.02 NVIDIA driver will ignore
NVRM:  this GPU.  Continuing probe...
NVRM: No NVIDIA GPU found."""
OPEN_MODULES = """\
NVRM: The NVIDIA GPU 0000:5e:00.0 (PCI ID: 10de:1db6)
NVRM: installed in this system is not supported by open
NVRM: nvidia.ko because it does not include the required GPU
NVRM: System Processor (GSP).
NVRM: None of the NVIDIA devices were initialized.
NVRM: GPU 0000:5e:00.0: RmInitAdapter failed! (0x24:0x72:1568)"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [(NEWER_DRIVER, "driver-dropped-gpu"), (OPEN_MODULES, "open-modules-old-gpu")],
)
@pytest.mark.parametrize(
    "prefix", ["", "[   21.004211] ", "Nov 02 10:11:12 host kernel: ", " " * 15]
)
def test_what_the_kernel_says_over_several_lines_hides_what_follows_from_it(
    log: str, cause: str, prefix: str
) -> None:
    kernel_lines = "\n".join(prefix + line for line in log.splitlines())
    in_one_line = "#012".join(log.splitlines())

    assert ids_of_hints(f"{NVIDIA_SMI}\n{NO_GPU_IN_TORCH}\n{kernel_lines}") == [cause]
    assert ids_of_hints(f"{NVIDIA_SMI}\n{in_one_line}") == [cause]
    assert ids_of_hints(f"{NO_GPU_IN_TORCH}\n{NVIDIA_SMI}") == ["smi-no-driver"]


@pytest.mark.parametrize("page", COMMON_ERRORS)
def test_every_common_error_of_the_reference_pages_has_a_row(page: str) -> None:
    rows = [row.id for row in ROWS if f"seed:{page}" in row.source.split(", ")]

    # An error that is on several pages, such as out of memory, has one row that names them all.
    assert len(rows) == COMMON_ERRORS[page], rows


def test_every_thread_of_the_catalogue_has_a_row() -> None:
    sources = " ".join(row.source for row in ROWS)

    for thread in THREADS.split():
        assert thread in sources


def test_a_healthy_image_is_given_no_hint() -> None:
    evidence = json.loads((ROOT / "tests" / "support" / "recorded_cpu.json").read_text())
    for record in evidence["records"]:
        # There, `users` tries a folder that nobody may write to.
        record["measurements"] = [
            measurement
            for measurement in record["measurements"]
            if measurement["subject"] != "foreign-folder"
        ]

    assert [hint.id for hint in hints.find(hints.texts(evidence))] == []


def test_lines_that_people_reported_find_their_row() -> None:
    file = ROOT / "tests/validate/hint_lines.tsv"
    # Below a heading: the row that must be found, and the line.
    rows = [tuple(row.split("\t")) for row in file.read_text(encoding="utf-8").splitlines()[1:]]

    found = [(hints.find([line])[0].id, line) for _, line in rows]

    assert found == rows


@pytest.mark.parametrize(
    ("line", "index", "other_way"),
    [
        ("GTX 1080 Ti with CUDA capability sm_61 is", "cu126", "whl/cu1[23][^6]"),
        ("RTX 5090 with CUDA capability sm_120 is", "cu130", "whl/cu126"),
    ],
)
def test_a_gpu_that_is_too_old_gets_an_older_cuda_and_one_too_new_a_newer(
    line: str, index: str, other_way: str
) -> None:
    """Both ways were told to take cu128 (ComfyUI-Nvidia-Docker#61, wyoming-xtts#1)."""
    (hint,) = hints.find([f"{line} not compatible with the current PyTorch installation."])

    assert f"https://download.pytorch.org/whl/{index}`" in hint.fix
    assert not re.search(other_way, hint.fix)


def test_a_line_that_tells_no_way_gets_both() -> None:
    (hint,) = hints.find(["no kernel image is available for execution on the device"])

    assert "get_arch_list" in hint.fix
    assert "cu126" in hint.fix
    assert "cu130" in hint.fix


@pytest.mark.parametrize(
    "command",
    [
        # Pip says "already satisfied": the number of the wrong build is the right one.
        r"`pip install (?![^`]*--force-reinstall)[^`]*--index-url https://download\.pytorch\.",
        # Pip takes the newest release, and replaces torch by one that goes with it.
        r"`(?![^`]*(?:--no-deps|torch==))[^`]*install -U [^`]*(?:bitsandbytes|unsloth|vllm|accel)",
        # A package with a module's name may be somebody else's (state-spaces/mamba#891).
        r"pip install (?:NAME|MODULE)",
    ],
)
def test_no_fix_has_a_command_that_changes_nothing_or_too_much(command: str) -> None:
    assert re.findall(command, FIXES) == []


PIP_LIST = "ERROR: Could not find a version that satisfies the requirement torch"
NO_TORCH = "ERROR: No matching distribution found for torch"


@pytest.mark.parametrize(
    ("wanted", "listed", "row"),
    [
        # Python 3.14 begins with 2.9, and 3.12 with 2.2.
        ("==2.7.1+cu126", "2.9.0+cu126, 2.9.1+cu126", "pip-torch-only-newer"),
        ("~=1.13.0", "2.2.0, 2.2.1, 2.2.2", "pip-torch-only-newer"),
        ("vision==0.9.1", "0.17.0, 0.17.1", "pip-torch-only-newer"),
        ("==2.10.0", "2.15.0", "pip-torch-only-newer"),
        ("==2.1.2", "2.10.0, 2.11.0", "pip-torch-only-newer"),
        ("==2.9.1", "2.7.0, 2.8.0", "pip-torch-not-listed"),
        ("==2.10.0", "2.2.0, 2.9.1", "pip-torch-not-listed"),
        ("==2.7.0+cu128", "2.7.0, 2.7.1", "pip-torch-not-listed"),
        (">=2.15", "2.9.0, 2.14.1", "pip-torch-not-listed"),
        ("==2.7.0", "none", "pip-no-torch"),
    ],
)
def test_what_pip_lists_decides_whether_the_index_is_to_blame(
    wanted: str, listed: str, row: str
) -> None:
    lines = f"{PIP_LIST}{wanted} (from versions: {listed})\n{NO_TORCH}{wanted}"

    assert ids_of_hints(lines) == [row]


TOKENIZER = "TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'"


@pytest.mark.parametrize(
    ("frame", "row"),
    [
        (
            '  File "/v/site-packages/trl/trainer/sft_trainer.py", line 4, in f',
            "trl-passes-tokenizer",
        ),
        ("│ /v/site-packages/trl/trainer/sft_trainer.py:4 in f  │", "trl-passes-tokenizer"),
        ("File ~/v/site-packages/trl/trainer/a.py:4, in f(self)", "trl-passes-tokenizer"),
        ("[/d/trl/trainer/a.py](https://localhost:8080/#) in f(self)", "trl-passes-tokenizer"),
        ('  File "/work/train.py", line 4, in <module>', "library-passes-tokenizer"),
        ('  File "<stdin>", line 1, in <module>', "library-passes-tokenizer"),
    ],
)
def test_the_last_frame_tells_whether_a_library_made_the_call(frame: str, row: str) -> None:
    """A script was told to rename an argument that trl itself passes (trl#6168)."""
    before = '  File "/v/site-packages/trl/trainer/other.py", line 1, in g'
    wrapper = '  File "/v/transformers/utils/deprecation.py", line 1, in wrapped_func'

    assert ids_of_hints(f"{before}\n{frame}\n{wrapper}\n    super().__init__(\n{TOKENIZER}") == [
        row
    ]


LINK_LOCAL = "gpu07:2210:2210 [0] NCCL INFO Bootstrap : Using usb0:169.254.7.2<0>"
REMOTE = "ncclRemoteError: A call failed possibly due to a network error"


def test_the_interface_of_nccl_comes_first_and_blames_no_other_error() -> None:
    assert ids_of_hints(f"{LINK_LOCAL}\n{REMOTE}") == ["nccl-wrong-interface", "nccl-remote"]
    assert ids_of_hints(f"{LINK_LOCAL}\nCUDA out of memory") == ["cuda-out-of-memory"]
    # Every container on Docker's own network has this address; on one host nothing is wrong.
    assert ids_of_hints("a:1:1 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>") == []


def test_a_dll_of_torch_that_does_not_start_is_tried_alone_first() -> None:
    begin = "OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed."
    end = r'Error loading "D:\v\Lib\site-packages\torch\lib\c10.dll" or one of its dependencies.'

    for text in (f"{begin} {end}", f"{begin}\n{end}"):
        (hint,) = hints.find([text])
        assert hint.id == "windows-torch-init"
        assert hint.fix.startswith('`python -c "import torch"` alone')


def test_an_xformers_beside_a_cpu_build_of_torch_is_not_to_blame() -> None:
    log = """WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
        PyTorch 2.8.0+cu126 with CUDA 1206 (you have 2.8.0+cpu)
        Python  3.10.11 (you have 3.12.4)"""

    assert ids_of_hints(log) == ["xformers-torch-cpu"]
    assert ids_of_hints(log.replace("+cpu", "+cu128")) == ["xformers-extensions"]


def test_out_of_memory_names_the_logits_of_the_loss() -> None:
    (hint,) = hints.find(["torch.OutOfMemoryError: CUDA out of memory."])

    assert "cross_entropy" in hint.cause
    assert "fused or chunked loss" in hint.fix


def test_a_module_is_installed_by_the_name_of_its_package() -> None:
    (hint,) = hints.find(["ModuleNotFoundError: No module named 'selective_scan_cuda'"])

    assert "mamba-ssm" in hint.fix


def test_healthy_logs_are_given_no_hint() -> None:
    """Of pip, training, NCCL's INFO, builds and the driver's start.

    Errors of registries are among them, which are in no row.
    """
    log = (ROOT / "tests/validate/healthy.log").read_text(encoding="utf-8")

    assert [*hints.explain_lines([log])] == []


def test_at_most_three_hints_are_given_in_the_order_of_the_lines_each_once() -> None:
    lines = [
        "CUDA out of memory",
        "nothing",
        "Bus error",
        "CUDA out of memory, again",
        "libcuda.so.1: cannot open",
        "GLIBC_2.3 not found",
    ]

    assert ids_of_hints("\n".join(lines)) == ["cuda-out-of-memory", "shared-memory", "no-libcuda"]


@pytest.mark.parametrize("status", Status)
def test_only_what_failed_or_is_unproven_is_explained(status: Status) -> None:
    claim = Claim(check="attention", subject="x", tier=Tier.GPU, probe="gpu.x", statement="-")
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    judged = ClaimVerdict(
        claim=claim,
        status=status,
        reason="it does not run",
        seconds=1.0,
        evidence={"error": error},
    )

    (explained,) = explain(Verdict(image="i", digest="d", claims=(judged,))).claims

    assert bool(explained.hints) is (status in (Status.FAIL, Status.UNPROVEN))


# ---- the command: `hint` on the host, `doctor hint` in an image

NO_GPU = "No CUDA GPUs are available"
LOG_WITH_COLOURS = "step 1\n\x1b[31mRuntimeError: No CUDA GPUs\x1b[0m are available\n"
COLUMNS = 80


@pytest.fixture(params=["on the host", "in an image"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "on the host":
        return [sys.executable, "-m", "images", "hint"]
    suite = suite_folder.lay_out(tmp_path / "image")
    return [sys.executable, "-I", "-S", str(suite), "doctor", "hint"]


@pytest.mark.parametrize("way", ["file", "argument", "pipe"])
def test_the_command_reads_a_file_an_argument_and_a_pipe(
    command: list[str], tmp_path: Path, way: str
) -> None:
    log = tmp_path / "log"
    log.write_text(LOG_WITH_COLOURS)
    arguments = {"file": [str(log)], "argument": [NO_GPU], "pipe": []}[way]

    done = subprocess.run(
        [*command, *arguments],
        input=NO_GPU if way == "pipe" else "",
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(COLUMNS)},
    )

    assert "  cause: CUDA finds no GPU in this process" in done.stdout
    assert "seed:" not in done.stdout, "a name that only this repository knows"
    assert max(map(len, done.stdout.splitlines())) <= COLUMNS


def test_json_has_the_row_of_a_text_that_begins_like_an_option() -> None:
    done = call("hint", "--json", "--", "-lcuda: Bus error")

    assert [row["id"] for row in json.loads(done.stdout)["hints"]] == ["shared-memory"]


def test_a_text_without_a_known_error_says_where_to_search_on() -> None:
    done = call("hint", "all is well")

    assert (done.returncode, done.stdout) == (1, "")
    assert "no known error in 1 line\n      next: " in done.stderr


def test_a_message_keeps_to_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    for text in ("all is well", "missing.log", "-"):
        message = call("hint", text).stderr
        assert max(map(len, message.splitlines())) <= 60


def test_a_pattern_is_compiled_once_for_all_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps 512 compiled patterns; a log of 1,000 lines took minutes beyond that."""
    compiled = []
    compile_pattern = re._compiler.compile  # type: ignore[attr-defined]

    def count(pattern: str, flags: int) -> object:
        compiled.append(pattern)
        return compile_pattern(pattern, flags)

    monkeypatch.setattr("re._compiler.compile", count)

    assert not hints.find(f"step {number}: all is well" for number in range(3))
    assert len(compiled) <= len(hints.known()) + 10, "each once, and a few of the module itself"


def test_json_of_a_text_without_a_known_error_has_no_hint() -> None:
    done = call("hint", "--json", "all is well")

    assert done.returncode == 1
    assert json.loads(done.stdout) == {"hints": []}


def test_an_empty_file_says_how_to_give_a_text(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    done = call("hint", str(tmp_path / "empty"))

    assert "what was given is empty\n      next: give the error" in done.stderr
    assert "`COMMAND 2>&1 | nox -s hint`" in done.stderr


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"\x7fELF\0\0")

    done = call("hint", str(tmp_path / "train.bin"))

    assert done.returncode == 2
    assert "train.bin is no text: it has zero bytes" in done.stderr


@pytest.mark.parametrize("name", ["/tmp/missing.log", "train.log", "nohup.out"])
def test_a_name_of_a_file_that_is_missing_is_refused(name: str) -> None:
    assert_refused(name)


def test_a_compressed_log_gets_the_command_that_prints_its_text(tmp_path: Path) -> None:
    log = tmp_path / "train.log.gz"
    log.write_bytes(gzip.compress(b"CUDA out of memory"))

    done = call("hint", str(log))

    assert done.returncode == 2
    assert f"{log} is compressed: pipe its text in, by `gzip --decompress" in done.stderr


@pytest.mark.parametrize("name", ["folder", "a folder"])
def test_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    assert_refused(str(tmp_path / name))


def assert_refused(name: str) -> None:
    done = call("hint", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name} is " in done.stderr
    assert "next: " in done.stderr


def test_a_fix_names_commands_of_this_checkout() -> None:
    done = call("hint", "PyTorch version is too old")

    assert '`nox -s plan -- "torch>=2.5"`' in done.stdout


def test_patterns_do_not_run_away() -> None:
    """A line of 20,000 characters, as a compiler's command line can be, is read in no time."""
    line = "gcc -I" + "/include" * 2500

    assert ids_of_hints(line) == []


def test_containers_have_the_same_rows_as_json() -> None:
    """Their Python has no YAML.

    The same table gives the same bytes, so the suite's layer never varies.
    """
    files = suite_files(ClaimSet(image="", claims=()))

    assert "validate/hints.yaml" not in files
    assert files["validate/hints.json"] == hints.as_json()
    rows = json.loads(files["validate/hints.json"])
    assert [hints.Hint(**row) for row in rows] == list(hints.known())
