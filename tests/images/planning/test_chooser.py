"""Which image is recommended for a machine: models, architectures, drivers, and the reasons."""

import json
import platform
import re
from collections.abc import Sequence

import pytest
import yaml
from packaging.version import Version

from images.config.facts import DeviceCode
from images.config.names import Arch, Minor
from images.config.platforms import Platform
from images.engine import host_gpus
from images.errors import UserError
from images.hardware.inventory import Gpu, Inventory
from images.planning import chooser, plan
from images.planning.chooser import Choice, ImageSummary, Machine, Options
from images.planning.image import Image
from tests.support.checkout import ROOT
from tests.support.commands import call
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as REAL
from tests.support.sources import image

IMAGES = [planned.image for planned in plan.plan(SOURCES) if planned.image]
REAL_IMAGES = [planned.image for planned in plan.plan(REAL) if planned.image]
REAL_SUMMARIES = [chooser.summarize(image, REAL.facts) for image in REAL_IMAGES]
MACHINES = yaml.load(
    (ROOT / "tests/images/planning/machines.yaml").read_text(encoding="utf-8"),
    Loader=yaml.CSafeLoader,
)
FITS = ("cubin", "ptx", "no")
"""How a GPU runs an image, best first."""


def machine_with(gpu: str, driver: str = "") -> Machine:
    return chooser.machine_from_options([gpu], [], driver)


def choose(images: Sequence[Image], machine: Machine, options: Options | None = None) -> Choice:
    facts = REAL.facts if images is REAL_IMAGES else SOURCES.facts
    summaries = [chooser.summarize(image, facts) for image in images]
    return chooser.choose(summaries, machine, options or Options())


def choose_for(gpu: str, driver: str = "", **options: object) -> Choice:
    """Return the choice among the images of the small matrix."""
    wanted = Options(**options)  # type: ignore[arg-type]
    return choose(IMAGES, machine_with(gpu, driver), wanted)


def best_of(summaries: Sequence[ImageSummary], machine: Machine, torch: str = "") -> chooser.Answer:
    options = Options(torch=chooser.torch_range(torch))
    return chooser.choose(summaries, machine, options).fitting[0]


def reasons_against(choice: Choice) -> list[tuple[str, ...]]:
    return [unfit.reasons for unfit in choice.others]


# --- models of GPUs -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", MACHINES["models"])
def test_a_model_is_found_by_what_drivers_and_people_call_it(text: str) -> None:
    name, row = chooser.find_model(text)

    assert [name, row.capability] == MACHINES["models"][text]


@pytest.mark.parametrize("text", ["RTX 6000", "RTX 9990", "", "NVIDIA 80GB", "H100 and A100"])
def test_a_text_that_means_no_model_or_several_is_an_error_with_a_way_out(text: str) -> None:
    with pytest.raises(
        UserError, match="--arch the compute capability, which `nvidia-smi"
    ) as error:
        chooser.find_model(text)

    all_three = "the name of one (RTX PRO 6000 Blackwell, RTX 6000 Ada, Quadro RTX 6000); or"
    is_ambiguous = text == "RTX 6000"
    assert (all_three in str(error.value)) == is_ambiguous


def test_a_wrong_digit_is_more_likely_than_a_letter_in_its_place() -> None:
    with pytest.raises(UserError) as error:
        chooser.find_model("RTX 5900")

    (problem,) = error.value.problems
    assert "(GeForce RTX 50" in problem.then


@pytest.mark.parametrize(
    "text", ["MI300X", "AMD Instinct MI250", "Radeon RX 7900", "Intel Arc A770", "Gaudi 3"]
)
def test_a_gpu_of_another_maker_is_said_to_be_one(text: str) -> None:
    with pytest.raises(UserError, match="no GPU of NVIDIA") as error:
        chooser.find_model(text)

    assert "give --gpu the name of one" not in error.value.problems[0].then


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("AMD EPYC, 8 x H100", "`--gpu 'H100'`"),
        ("GPU 0: NVIDIA H100 PCIe (UUID: GPU-5a)", "`--gpu 'H100'`"),
        ("rtx 3090 ti and a fan", "`--gpu 'GeForce RTX 3090 Ti'`"),
        ("A100 and H100", "`--gpu 'H100' --gpu 'A100'`"),
        # A model of Intel: so what a text names is not taken.
        ("Intel Arc Pro A40", "if you mean that, write `--gpu 'A40'`"),
    ],
)
def test_a_model_among_other_words_is_named_as_it_has_to_be_written(text: str, option: str) -> None:
    with pytest.raises(UserError) as error:
        chooser.find_model(text)

    assert option in error.value.problems[0].then


def test_every_model_of_the_table_means_itself_and_has_a_source() -> None:
    assert len(chooser.models()) > 90
    for name, row in chooser.models().items():
        assert chooser.find_model(name) == (name, row)
        assert row.source.startswith("https://")


# --- what a person gives --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "arch", "driver", "problem"),
    [
        ("H100", "", "new", "no version of a driver"),
        ("H100", "", "v550.90", "no version of a driver"),
        ("H100", "", "550-1", "no version of a driver"),
        ("H100", "", "550rc1", "no version of a driver"),
        ("H100", "", "1!550.90", "no version of a driver"),
        ("H100", "", "12.4", "this is a version of CUDA"),
        ("", "ninety", "", "--arch ninety"),
        ("H100", "sm_86", "", "H100, which --gpu names, has the architecture sm_90"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(
    gpu: str, arch: str, driver: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        chooser.machine_from_options([gpu], [arch] if arch else [], driver)


def test_an_architecture_describes_a_model_that_the_table_lacks() -> None:
    assert chooser.machine_from_options(["RTX 9990"], ["9.0"], "").archs == (Arch(9, 0),)


def test_an_architecture_alone_is_no_model_of_a_gpu() -> None:
    """`--arch sm90` was told that an image `has not run on sm_90 (sm_90)`, but on an H200."""
    machine = chooser.machine_from_options([], ["sm90"], "570")

    assert machine.gpus == ()
    assert str(machine) == "sm_90, driver branch 570"


def test_an_architecture_that_only_arm_boards_have_is_beside_an_arm_processor() -> None:
    assert chooser.machine_from_options([], ["sm_121"], "").arm
    assert not chooser.machine_from_options([], ["sm_120"], "").arm


def test_a_machine_without_a_gpu_is_refused_with_what_to_give() -> None:
    with pytest.raises(UserError, match="no GPU is named") as error:
        chooser.machine_from_options([], [], "580.65")
    assert "give --arch the compute capability" in error.value.problems[0].then


def test_an_architecture_adds_nothing_to_a_model_that_the_table_has() -> None:
    with_arch = chooser.machine_from_options(["GH200"], ["9.0"], "")

    assert with_arch == chooser.machine_from_options(["GH200"], [], "")


def test_versions_of_torch_and_python_are_read() -> None:
    assert str(chooser.torch_range("2.7.1")) == "==2.7.1"
    assert chooser.python_minor("3.11.9") == "3.11"
    with pytest.raises(UserError, match="no range of versions"):
        chooser.torch_range("newest")
    with pytest.raises(UserError, match="no version of Python"):
        chooser.python_minor("py311")


# --- drivers and architectures --------------------------------------------------------------------


def test_an_older_driver_gets_the_newest_torch_of_a_cuda_that_it_can_run() -> None:
    choice = choose_for("RTX 4090", "550.90")

    best = choice.fitting[0]
    assert best.image.wheel_cuda.startswith("12.")
    torch_versions = []
    for rival in IMAGES:
        torch = rival.pin("torch")
        if rival.wheel_cuda.major == 12 and not rival.name.profile and torch:
            torch_versions.append(Version(torch.version))
    assert Version(best.image.torch) == max(torch_versions)
    assert "machine code for sm_89 through sm_86, of the same major" in best.reasons
    assert ("CUDA 13 needs driver 580 or newer",) in reasons_against(choice)


@pytest.mark.parametrize(
    "gpu", ["RTX 4090", "Tesla P40", "B200", "H100", "V100", "RTX 5090", "B300"]
)
@pytest.mark.parametrize("driver", ["", "470.1", "525.60.13", "550.90", "580.65", "999"])
def test_no_image_is_recommended_that_cannot_run(gpu: str, driver: str) -> None:
    machine = machine_with(gpu, driver)

    choice = choose(IMAGES, machine)

    for answer in choice.fitting:
        assert not driver or Version(driver) >= Version(answer.image.min_driver)
        code = DeviceCode(archs=answer.image.archs, ptx=answer.image.ptx)
        assert all(code.covers(arch) != "no" for arch in machine.archs)
    fits = [answer.fit for answer in choice.fitting]
    assert fits == sorted(fits, key=FITS.index), "machine code before PTX"
    assert choice.fitting or choice.others


IMAGE_WITH_PTX = next(image for image in IMAGES if image.ptx)
# No run-time compiler knows a GPU that does not exist yet. Without its compilers, an image fits.
PTX_ONLY = chooser.summarize(IMAGE_WITH_PTX, SOURCES.facts).model_copy(update={"compilers": {}})
FUTURE_GPU = Arch(99, 0)


def test_an_image_with_only_ptx_fits_a_newer_gpu_with_a_newer_driver() -> None:
    machine = Machine(gpus=("x",), archs=(FUTURE_GPU,), driver="999")

    (answer,) = chooser.choose([PTX_ONLY], machine, Options()).fitting

    assert answer.fit == "ptx"
    assert any(reason.startswith("only PTX for sm_990") for reason in answer.reasons)


def test_an_image_with_only_ptx_needs_a_driver_of_its_own_cuda() -> None:
    machine = Machine(gpus=("x",), archs=(FUTURE_GPU,), driver=IMAGE_WITH_PTX.min_driver)

    choice = chooser.choose([PTX_ONLY], machine, Options())

    cuda = IMAGE_WITH_PTX.wheel_cuda
    first_driver = SOURCES.facts.cuda[str(cuda)].driver
    reason = f"PTX of CUDA {cuda} needs driver {first_driver} or newer"
    assert reasons_against(choice)[0] == (reason,)


def test_a_machine_with_two_kinds_of_gpus_needs_code_for_both() -> None:
    machine = chooser.machine_from_options(["V100", "H100"], [], "580.65")

    choice = choose(IMAGES, machine)

    assert choice.fitting
    assert all(answer.fit == "cubin" for answer in choice.fitting)
    assert "cu130" not in choice.fitting[0].name, "CUDA 13 has dropped Volta"


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (["V100", "B200"], "the one needs the proprietary kernel modules, the other the open ones"),
        (["K80", "RTX 4090"], "branch 470 is the last of the one, 520 the first of the other"),
    ],
)
def test_gpus_that_no_driver_serves_together_get_no_image(gpus: list[str], reason: str) -> None:
    """The last --gpu alone was answered for (unslothai/unsloth#5876)."""
    (fault,) = chooser.wrong_for_gpu(chooser.machine_from_options(gpus, [], ""))

    assert fault.endswith(reason)


def test_wsl_has_no_kernel_modules_and_windows_numbers_of_drivers() -> None:
    v100_and_b200 = chooser.machine_from_options(["V100", "B200"], [], "581.15", wsl=True)

    assert v100_and_b200.branch == 580
    assert list(chooser.wrong_for_gpu(v100_and_b200)) == []
    assert "kernel modules" not in "".join(choose(IMAGES, v100_and_b200).fitting[0].reasons)


def test_a_branch_stands_for_all_its_releases() -> None:
    """`--driver 570` was read as 570.0, which is older than CUDA 12.8's own 570.26."""
    branch, release = machine_with("H100", "570"), machine_with("H100", "570.0")

    assert branch.has_driver("570.26")
    assert not branch.has_driver("575")
    assert not release.has_driver("570.26")
    assert str(branch).endswith("driver branch 570")


@pytest.mark.parametrize(
    ("gpus", "archs", "cause"),
    [
        (["T4", "H100"], ["sm75"], "--gpu is given 2 times, and --arch 1 times"),
        (["H100", "GH200"], [], "no image fits H100, GH200 together"),
    ],
)
def test_gpus_that_make_no_machine_are_refused(
    gpus: list[str], archs: list[str], cause: str
) -> None:
    with pytest.raises(UserError, match=cause):
        chooser.machine_from_options(gpus, archs, "")


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        ({"gpu": "RTX 5090", "driver": "550.90"}, "install driver 570 or newer"),
        ({"gpu": "V100", "driver": "590"}, "install a driver of branch 384 to 580"),
        ({"gpu": "H100", "driver": "450.80"}, "install driver 520 or newer"),
        ({"gpu": "A100", "driver": "450.80"}, "update the driver to 525.60.13 or newer"),
        ({"gpu": "GTX 780"}, "no image of the matrix has code for sm_35"),
    ],
)
def test_no_answer_is_without_a_next_step(arguments: dict[str, str], step: str) -> None:
    machine = machine_with(**arguments)
    assert not chooser.choose(REAL_SUMMARIES, machine, Options()).fitting

    assert chooser.find_next_step(REAL_SUMMARIES, machine, Options()).startswith(step)


def test_a_lock_is_advised_before_another_driver() -> None:
    """cu126-torch214 runs with branch 535 and has no lock; CUDA 13 needs a newer driver."""
    machine = machine_with("A100", "535")
    summaries = []
    for summary in REAL_SUMMARIES:
        blocked = "no lock" if summary.wheel_cuda.startswith("12") else ""
        summaries.append(summary.model_copy(update={"blocked": blocked}))

    step = chooser.find_next_step(summaries, machine, Options(torch=chooser.torch_range(">=2.11")))

    assert step.startswith("`nox -s lock -- cu126-torch2")


def test_an_unknown_driver_of_a_gpu_with_a_last_branch_has_two_limits() -> None:
    machine = chooser.machine_from_options(["V100", "T4"], [], "")

    best = best_of(REAL_SUMMARIES, machine)

    assert any(reason == "needs a driver from 525.60.13 to branch 580" for reason in best.reasons)


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [
        (["GTX 1080"], "CUDA 12.x and driver branch 580 are the last for Pascal"),
        (["P100", "T4"], "CUDA 12.x and driver branch 580 are the last for Pascal"),
        (["V100"], "CUDA 12.x and driver branch 580 are the last for Volta"),
        (["T4"], ""),
    ],
)
@pytest.mark.parametrize("driver", ["", "570.86.16"])
def test_the_last_cuda_and_driver_of_a_gpu_are_named(
    gpus: list[str], driver: str, sentence: str
) -> None:
    machine = chooser.machine_from_options(gpus, [], driver)

    reasons = best_of(REAL_SUMMARIES, machine).reasons

    ends = [reason for reason in reasons if "the last for" in reason]
    assert ends == ([sentence] if sentence else [])


@pytest.mark.parametrize("gpu", ["V100", "H100", "B200", "RTX 5090", "GB200"])
def test_the_driver_that_is_named_where_none_is_known_is_the_oldest_that_runs_the_image(
    gpu: str,
) -> None:
    machine = machine_with(gpu)

    for best in chooser.choose(REAL_SUMMARIES, machine, Options()).fitting:
        (reason,) = [text for text in best.reasons if text.startswith("needs ")]
        named = re.findall(r"[0-9.]+", reason)[0]
        # The image fits with this very driver, but not with one of the branch before it.
        assert not chooser.answer(best.image, machine_with(gpu, named), Options()).against
        older = str(int(named.partition(".")[0]) - 1)
        assert chooser.answer(best.image, machine_with(gpu, older), Options()).against


def test_an_image_with_only_ptx_names_its_own_cudas_driver_where_none_is_known() -> None:
    machine = Machine(gpus=("x",), archs=(FUTURE_GPU,))

    (answer,) = chooser.choose([PTX_ONLY], machine, Options()).fitting

    first_driver = SOURCES.facts.cuda[str(IMAGE_WITH_PTX.wheel_cuda)].driver
    assert f"needs driver {first_driver} or newer" in answer.reasons


@pytest.mark.parametrize(
    ("gpu", "driver", "torch", "builds", "sources"),
    MACHINES["machines"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_machine_gets_the_builds_of_torch_that_documents_say_run_there(
    gpu: str, driver: str, torch: str, builds: list[str], sources: list[str]
) -> None:
    """`builds`: the CUDA versions of these builds. `sources`: keys of the documents."""
    machine = machine_with(gpu, driver)
    of_torch = [
        summary
        for summary in REAL_SUMMARIES
        if str(Minor.parse(summary.torch)) == torch and not summary.profile and not summary.devel
    ]
    for_processor = [
        summary for summary in of_torch if summary.name.endswith("-arm64") == machine.arm
    ]

    fitting_cudas = set()
    for summary in of_torch:
        answer = chooser.answer(summary, machine, Options(python=summary.python))
        if not answer.against:
            fitting_cudas.add(summary.wheel_cuda)

    our_cudas = {summary.wheel_cuda for summary in for_processor}
    assert fitting_cudas == our_cudas & set(builds)
    assert builds or not fitting_cudas
    assert sources
    assert set(sources) <= set(MACHINES["sources"])


# --- ARM processors -------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", ["GB10", "GB200", "GH200", "GB300", "Thor", "DGX Spark GB10"])
def test_a_gpu_beside_an_arm_processor_gets_images_for_arm64_only(gpu: str) -> None:
    choice = choose(REAL_IMAGES, machine_with(gpu))

    assert choice.fitting
    assert all(answer.name.endswith("-arm64") for answer in choice.fitting)
    reason = "is for x86-64, and this GPU's host processor is ARM"
    assert (reason,) in reasons_against(choice)


def test_a_gpu_beside_x86_64_gets_no_image_for_arm64() -> None:
    choice = choose(REAL_IMAGES, machine_with("RTX 5090"))

    assert choice.fitting
    assert not any(answer.name.endswith("-arm64") for answer in choice.fitting)
    assert ("is for ARM processors",) in reasons_against(choice)


@pytest.mark.parametrize(
    "capability", [(9, 0), (8, 9), (8, 6)], ids=["GH200", "L40S in an ARM server", "A10 in one"]
)
def test_a_detected_arm_processor_gets_an_image_for_it(capability: tuple[int, int]) -> None:
    gpu = Gpu(name="x", capability=capability, memory=1)
    inventory = Inventory(driver="580.95.05", gpus=(gpu,), source="NVML")
    machine = chooser.machine_from_inventory(inventory, Platform.ARM64)

    fitting = choose(REAL_IMAGES, machine).fitting

    assert fitting
    assert all(answer.name.endswith("-arm64") for answer in fitting)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        ("Jetson AGX Orin", "has no code for sm_87 (it"),  # the images have code for its family
        ("GTX 980", "has no code for sm_52 (it"),
    ],
)
def test_a_gpu_that_no_image_names_gets_none(gpu: str, reason: str) -> None:
    choice = choose(REAL_IMAGES, machine_with(gpu))

    assert not choice.fitting
    assert any(reasons[0].startswith(reason) for reasons in reasons_against(choice))


def test_a_gpu_that_triton_does_not_know_gets_no_image_with_it() -> None:
    choice = choose(REAL_IMAGES, machine_with("Thor"))

    # Its Triton, 3.6, can't assemble for sm_110.
    assert "cu130-torch211-arm64" not in [answer.name for answer in choice.fitting]


def detect_gh200(monkeypatch: pytest.MonkeyPatch, processor: str) -> None:
    """Let this machine have a GH200's GPU and this processor."""
    gpu = Gpu(name="NVIDIA GH200 480GB", capability=(9, 0), memory=1)
    inventory = Inventory(driver="580.95", gpus=(gpu,), source="NVML")
    monkeypatch.setattr(host_gpus, "inventory", lambda _folder: inventory)
    monkeypatch.setattr(platform, "machine", lambda: processor)


@pytest.mark.parametrize(("processor", "for_arm"), [("aarch64", True), ("x86_64", False)])
def test_a_detected_machine_gets_an_image_for_its_own_processor(
    processor: str, for_arm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    detect_gh200(monkeypatch, processor)

    (best, *_) = json.loads(call("choose", "--json").stdout)["fitting"]

    assert best["name"].endswith("-arm64") == for_arm


def test_a_named_gpu_has_nothing_to_do_with_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_gh200(monkeypatch, "aarch64")

    (best, *_) = json.loads(call("choose", "--json", "--gpu", "H100").stdout)["fitting"]

    assert not best["name"].endswith("-arm64")


# --- what a person wants --------------------------------------------------------------------------


def test_only_images_of_the_wanted_torch_fit() -> None:
    exact = choose_for("H100", "580.65", torch=chooser.torch_range("2.7")).fitting
    older = choose_for("H100", "580.65", torch=chooser.torch_range("<2.9,>=2.7")).fitting

    assert {answer.image.torch for answer in exact} == {"2.7.1"}
    assert older
    assert all(answer.image.torch < "2.9" for answer in older)


def test_another_python_and_the_devel_toolkit_are_given_only_on_request() -> None:
    usual = [answer.name for answer in choose_for("H100", "999").fitting]
    devel = [answer.name for answer in choose_for("H100", "999", devel=True).fitting]
    py313 = [answer.name for answer in choose_for("H100", "999", python="3.13").fitting]

    assert not any("-py" in name or name.endswith("-devel") for name in usual)
    assert all(name.endswith("-devel") for name in devel)
    assert all("-py313" in name for name in py313)


# --- which image comes first ----------------------------------------------------------------------


def test_an_image_for_one_architecture_comes_before_its_parent() -> None:
    for_sm90 = image("cu126-torch27-sm90", SOURCES)
    options = Options(torch=chooser.torch_range("2.7"))

    choice = choose([*IMAGES, for_sm90], machine_with("H100", "580.65"), options)

    names = [answer.name for answer in choice.fitting]
    assert names.index("cu126-torch27-sm90") < names.index("cu126-torch27")


@pytest.mark.parametrize(
    ("gpu", "first"),
    [("NVIDIA H200 NVL", "cu130-torch211"), ("H100", "cu132-torch215")],
    ids=["the GPU that it passed on", "another GPU"],
)
def test_an_image_that_passed_on_this_model_of_gpu_comes_first(gpu: str, first: str) -> None:
    summaries = []
    for summary in REAL_SUMMARIES:
        has_passed = summary.name == "cu130-torch211"
        passed_on = ["H200"] if has_passed else []
        summaries.append(summary.model_copy(update={"passed_on": passed_on}))

    assert best_of(summaries, machine_with(gpu, "595.45.04")).name == first


def test_an_image_without_a_lock_is_not_recommended_and_the_command_is_named() -> None:
    machine = machine_with("RTX 4090", "550.90")
    summaries = [chooser.summarize(image, SOURCES.facts) for image in IMAGES]
    best = best_of(summaries, machine).name
    with_best_blocked = [
        summary.model_copy(update={"blocked": "no lock" if summary.name == best else ""})
        for summary in summaries
    ]

    choice = chooser.choose(with_best_blocked, machine, Options())

    assert choice.fitting
    assert best not in [answer.name for answer in choice.fitting]
    reasons = ("has no lock: it can't be built before `nox -s lock` has made one",)
    assert ((best,), reasons) in choice.others


# --- what a person should know --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "needs"),
    [
        ("RTX 5090", ["Blackwell needs the driver's open kernel modules"]),
        ("V100", ["Volta needs the driver's proprietary kernel modules"]),
        ("H100", []),
        ("GH200", ["Grace Hopper needs the driver's open kernel modules"]),
    ],
)
def test_the_kernel_modules_that_a_gpu_needs_are_named(gpu: str, needs: list[str]) -> None:
    best = best_of(REAL_SUMMARIES, machine_with(gpu, "580.95"))

    assert [text for text in best.reasons if "kernel modules" in text] == needs


def test_an_optional_package_without_code_for_the_gpu_is_named() -> None:
    best = best_of(REAL_SUMMARIES, machine_with("B200"), torch="2.8")

    (about_xformers,) = (text for text in best.reasons if text.startswith("xformers "))
    assert about_xformers.endswith("machine code of its own for sm_100")


def test_a_silent_fault_that_plain_training_meets_is_named() -> None:
    best = best_of(REAL_SUMMARIES, machine_with("V100"), torch="2.8")

    prefix = "silently wrong: conv3d in bfloat16"
    assert any(text.startswith(prefix) for text in best.reasons), best.reasons


# --- the verb -------------------------------------------------------------------------------------


def test_the_choice_is_printed_for_people_and_for_machines() -> None:
    choice = choose_for("RTX 4090", "550.90")
    best = choice.fitting[0].name
    known = chooser.Known(get=f"docker pull r.io/i:{best}", sentence="No run.")

    text = "\n".join(chooser.sentences(choice, machine_with("RTX 4090", "550.90"), known, ""))
    data = json.loads(json.dumps(choice.as_json()))

    assert f"docker pull r.io/i:{best}\nNo run." in text
    assert "\nNot " in text
    assert data["fitting"][0]["fits"]
    assert data["others"][0]["against"]


def test_it_says_why_it_takes_no_newer_torch() -> None:
    """A newcomer with driver 570 asked why he got torch 2.9 where there is 2.15."""
    machine = machine_with("H100", "570")
    summaries = []
    for summary in REAL_SUMMARIES:
        passed_on = ["H100"] if summary.name == "cu128-torch29" else []
        summaries.append(summary.model_copy(update={"passed_on": passed_on, "blocked": ""}))
    choice = chooser.choose(summaries, machine, Options())
    known = chooser.Known(get="", sentence="No run.")

    lines = list(chooser.sentences(choice, machine, known, ""))

    assert choice.fitting[0].name == "cu128-torch29"
    (not_passed,) = [line for line in lines if "its gpu tier has not passed on H100" in line]
    assert not_passed.startswith("Not the newer torch of cu")
    assert "cu128-torch28" not in not_passed, "that torch is older"
    first = next(line for line in lines if line.endswith(": CUDA 13 needs driver 580 or newer"))
    assert first.startswith("Not the newer torch of cu13")


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--gpu", "H100", "--driver", "580.65"], 0, "Take cu13"),
        (["--gpu", "H100", "--torch", "2.5"], 0, "Take cu124-torch25"),
        (["--gpu", "GTX 980"], 1, "No image fits."),
        (
            ["--gpu", "V100", "--driver", "570.172.08", "--torch", "2.11"],
            1,
            "None that can be built now fits; cu126-torch211 would, with a lock.",
        ),
        (["--gpu", "B200", "--profile", "axolotl", "--devel"], 1, "next: leave out the options"),
        (["--gpu", "GB200", "--driver", "570.86"], 1, "next: update the driver to 580 or newer"),
        (["--gpu", "A100", "--driver", "470"], 1, "if the driver must stay: torch's own wheels"),
        (["--gpu", "V100", "--gpu", "B200"], 1, "no driver serves both sm_70 (Volta)"),
        (["--gpu", "T4", "--driver", "570", "--driver", "580"], 2, "was given twice"),
        (["--gpu", "DGX Spark"], 0, "-arm64: "),
        (["--gpu", "RTX 5090", "--driver", "572.16", "--wsl"], 0, "Windows driver 572.16"),
        (["--gpu", "GTX 9800"], 2, "the name of one (GeForce GTX 980"),
        (["--gpu", "H100", "--profile", "axolottl"], 2, "axolottl"),
    ],
)
def test_the_verb_answers_with_its_exit_status(
    arguments: list[str], status: int, text: str
) -> None:
    finished = call("choose", *arguments)

    assert finished.returncode == status
    assert text in (finished.stderr if status == 2 else finished.stdout)
    assert "Traceback" not in finished.stderr


def test_known_silent_faults_come_with_the_command_that_lists_them() -> None:
    output = " ".join(call("choose", "--gpu", "RTX 4090", "--driver", "535").stdout.split())

    image = re.search(r"Take (\S+):", output)
    assert image and "known silent faults" in output
    assert f"`nox -s plan -- {image[1]}` lists the issues of these faults." in output


def test_a_driver_that_has_dropped_the_gpu_fits_no_image() -> None:
    output = call("choose", "--gpu", "V100", "--driver", "590.48").stdout

    assert "No image fits: branch 580 is the last driver for sm_70 (Volta)." in output
