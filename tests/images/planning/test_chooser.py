"""What a machine is told to pull: models, architectures, drivers, and the reasons."""

import json
import platform
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
from images.planning.chooser import Machine, Options
from images.planning.image import Image
from tests.support.checkout import ROOT
from tests.support.commands import call
from tests.support.small import SOURCES
from tests.support.sources import SOURCES as MATRIX
from tests.support.sources import image

IMAGES = [planned.image for planned in plan.plan(SOURCES) if planned.image]
OF_THE_MATRIX = [planned.image for planned in plan.plan(MATRIX) if planned.image]
OFFERS = [chooser.summarize(image, MATRIX.facts) for image in OF_THE_MATRIX]
MACHINES = yaml.load(
    (ROOT / "tests/images/planning/machines.yaml").read_text(encoding="utf-8"),
    Loader=yaml.CSafeLoader,
)


def choose(images: Sequence[Image], machine: Machine, options: Options) -> chooser.Choice:
    facts = MATRIX.facts if images is OF_THE_MATRIX else SOURCES.facts
    return chooser.rank([chooser.summarize(image, facts) for image in images], machine, options)


def answer(gpu: str = "", driver: str = "", arch: str = "", **options: object) -> chooser.Choice:
    machine = chooser.machine_from_options(gpu, arch, driver)
    return choose(IMAGES, machine, Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("said", MACHINES["models"])
def test_models_as_drivers_and_people_call_them(said: str) -> None:
    name, row = chooser.find_model(said)
    assert [name, row.capability] == MACHINES["models"][said]


@pytest.mark.parametrize(
    "said", ["RTX 6000", "RTX 9990", "Radeon RX 7900", "", "NVIDIA 80GB", "H100 and A100"]
)
def test_what_is_not_one_model_is_an_error_with_a_way_out(said: str) -> None:
    with pytest.raises(UserError, match="--arch what `nvidia-smi") as told:
        chooser.find_model(said)
    all_three = "nearest: RTX PRO 6000 Blackwell, RTX 6000 Ada, Quadro RTX 6000; or"
    assert (all_three in str(told.value)) == (said == "RTX 6000")


def test_every_model_means_itself_and_has_a_source() -> None:
    assert len(chooser.models()) > 90
    for name, row in chooser.models().items():
        assert chooser.find_model(name) == (name, row) and row.source.startswith("https://")


def test_an_older_driver_gets_the_newest_torch_of_a_cuda_it_can_run() -> None:
    found = answer("RTX 4090", "550.90")
    best = found.fitting[0]
    assert best.image.wheel_cuda.startswith("12.")
    assert "machine code for sm_89 through sm_86, of the same major" in best.reasons
    rivals = [image for image in IMAGES if image.wheel_cuda.major == 12 and not image.name.profile]
    assert Version(best.image.torch) == max(Version(image.pin("torch").version) for image in rivals)  # type: ignore[union-attr]
    assert any(reasons == ("CUDA 13 needs driver 580 or newer",) for _, reasons in found.others)


@pytest.mark.parametrize(
    "gpu", ["RTX 4090", "Tesla P40", "B200", "H100", "V100", "RTX 5090", "B300"]
)
@pytest.mark.parametrize("driver", ["", "470.1", "525.60.13", "550.90", "580.65", "999"])
def test_nothing_is_recommended_that_cannot_run(gpu: str, driver: str) -> None:
    machine = chooser.machine_from_options(gpu, "", driver)
    found = choose(IMAGES, machine, Options())
    for one in found.fitting:
        assert not driver or Version(driver) >= Version(one.image.min_driver)
        code = DeviceCode(archs=one.image.archs, ptx=one.image.ptx)
        assert all(code.covers(arch) != "no" for arch in machine.archs)
    fits = [one.fit for one in found.fitting]
    assert fits == sorted(fits, key=("cubin", "ptx", "no").index), "machine code before PTX"
    assert found.fitting or found.others


def test_only_ptx_is_the_last_resort_and_needs_a_driver_of_its_own_cuda() -> None:
    image = next(image for image in IMAGES if image.ptx)
    newer = Arch(99, 0)
    new, old = (
        Machine(gpus=("x",), archs=(newer,), driver=driver) for driver in ("999", image.min_driver)
    )
    known = chooser.summarize(image, SOURCES.facts).model_copy(update={"compilers": {}})
    (one,) = chooser.rank([known], new, Options()).fitting
    assert one.fit == "ptx" and any(
        reason.startswith("only PTX for sm_990") for reason in one.reasons
    )
    found = chooser.rank([known], old, Options())
    native = SOURCES.facts.cuda[str(image.wheel_cuda)].driver
    assert found.others[0][1] == (f"PTX of CUDA {image.wheel_cuda} needs driver {native} or newer",)


@pytest.mark.parametrize(
    "gpu", ["GB10", "GB200", "GH200", "GB300", "Thor", "DGX Spark GB10", "RTX 5090"]
)
def test_arm_hosts_get_images_for_arm64_and_no_others_do(gpu: str) -> None:
    found = choose(OF_THE_MATRIX, chooser.machine_from_options(gpu, "", ""), Options())
    on_arm = gpu != "RTX 5090"
    assert found.fitting and {one.name.endswith("-arm64") for one in found.fitting} == {on_arm}
    why = (
        "is for x86-64, and this GPU's host processor is ARM" if on_arm else "is for ARM processors"
    )
    assert (why,) in [reasons for _, reasons in found.others]


def test_a_board_that_no_image_names_gets_none_though_code_of_its_family_is_there() -> None:
    for gpu, said in (
        ("Jetson AGX Orin", "has no code for sm_87 (it"),
        ("GTX 980", "has no code for sm_52 (it"),
    ):
        found = choose(OF_THE_MATRIX, chooser.machine_from_options(gpu, "", ""), Options())
        assert not found.fitting and any(reasons[0].startswith(said) for _, reasons in found.others)
    thor = choose(OF_THE_MATRIX, chooser.machine_from_options("Thor", "", ""), Options())
    assert "cu130-torch211-arm64" not in [
        one.name for one in thor.fitting
    ]  # Triton 3.6 can't assemble for it


def test_another_torch_or_python_or_a_toolkit_is_given_as_it_is_asked_for() -> None:
    found = answer("H100", "580.65", torch=chooser.torch_range("2.7"))
    assert {one.image.torch for one in found.fitting} == {"2.7.1"}
    newest = answer("H100", "580.65", torch=chooser.torch_range("<2.9,>=2.7")).fitting
    assert newest and all(one.image.torch < "2.9" for one in newest)
    assert not [
        one
        for one in answer("H100", "999").fitting
        if "-py" in one.name or one.name.endswith("-devel")
    ]
    assert all(one.name.endswith("-devel") for one in answer("H100", "999", devel=True).fitting)
    assert all("-py313" in one.name for one in answer("H100", "999", python="3.13").fitting)


def test_a_machine_of_two_kinds_needs_code_for_both() -> None:
    machine = Machine(gpus=("V100", "B200"), archs=(Arch(7, 0), Arch(10, 0)), driver="580.65")
    found = choose(IMAGES, machine, Options())
    assert found.fitting and all(one.fit == "cubin" for one in found.fitting)
    assert "cu130" not in found.fitting[0].name, "CUDA 13 has dropped Volta"


@pytest.mark.parametrize("capability", [(9, 0), (8, 9), (8, 6)])
def test_a_host_with_an_arm_processor_gets_an_image_for_it(capability: tuple[int, int]) -> None:
    """GH200; L40S and A10 in an ARM server."""
    found = Inventory(
        driver="580.95.05", gpus=(Gpu(name="x", capability=capability, memory=1),), source="NVML"
    )
    fitting = choose(
        OF_THE_MATRIX, chooser.machine_from_inventory(found, Platform.ARM64), Options()
    ).fitting
    assert fitting and all(one.name.endswith("-arm64") for one in fitting)


@pytest.mark.parametrize(("processor", "for_arm"), [("aarch64", True), ("x86_64", False)])
def test_the_machine_is_asked_for_its_processor(
    processor: str, for_arm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Gpu(name="NVIDIA GH200 480GB", capability=(9, 0), memory=1)
    monkeypatch.setattr(
        host_gpus,
        "inventory",
        lambda _folder: Inventory(driver="580.95", gpus=(gpu,), source="NVML"),
    )
    monkeypatch.setattr(platform, "machine", lambda: processor)
    (best, *_) = json.loads(call("choose", "--json").stdout)["fitting"]
    assert best["name"].endswith("-arm64") == for_arm
    (best, *_) = json.loads(call("choose", "--json", "--gpu", "H100").stdout)["fitting"]
    assert not best["name"].endswith("-arm64"), "what is named has nothing to do with this machine"


def test_wrong_words_are_told() -> None:
    no_drivers = ("new", "v550.90", "550-1", "550rc1", "1!550.90")
    for gpu, arch, driver, said in (
        *(("H100", "", driver, "no version of a driver") for driver in no_drivers),
        ("H100", "", "12.4", "is CUDA's version"),
        ("", "ninety", "", "--arch ninety"),
        ("H100", "sm_86", "", "H100 is sm_90"),
    ):
        with pytest.raises(UserError, match=said):
            chooser.machine_from_options(gpu, arch, driver)
    with pytest.raises(UserError, match="no range of versions"):
        chooser.torch_range("newest")
    with pytest.raises(UserError, match="no version of Python"):
        chooser.python_minor("py311")
    assert (str(chooser.torch_range("2.7.1")), chooser.python_minor("3.11.9")) == (
        "==2.7.1",
        "3.11",
    )
    assert chooser.machine_from_options("GH200", "9.0", "") == chooser.machine_from_options(
        "GH200", "", ""
    )
    assert chooser.machine_from_options("RTX 9990", "9.0", "").archs == (Arch(9, 0),)


def test_the_answer_is_told_to_people_and_to_machines() -> None:
    found = answer("RTX 4090", "550.90")
    machine = chooser.machine_from_options("RTX 4090", "", "550.90")
    best = found.fitting[0].name
    known = {
        one.name: chooser.Known(get=f"docker pull r.io/i:{one.name}", sentence="No run.")
        for one in found.fitting
    }
    text = "\n".join(chooser.sentences(found, machine, known))
    assert f"docker pull r.io/i:{best}\nNo run." in text and "\nNot " in text
    data = json.loads(json.dumps(found.as_json()))
    assert data["fitting"][0]["fits"] and data["others"][0]["against"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--gpu", "H100", "--driver", "580.65"], 0, "Take cu13"),
        (["--gpu", "GTX 980"], 1, "No image fits."),
        (["--gpu", "B200", "--profile", "axolotl", "--devel"], 1, "leave out --profile or --devel"),
        (["--gpu", "H100", "--torch", "2.5"], 0, "Take cu124-torch25"),
        (["--gpu", "GTX 9800"], 2, "nearest: GeForce GTX 980"),
        (["--gpu", "H100", "--profile", "axolottl"], 2, "axolottl"),
    ],
)
def test_the_command_line_answers_with_its_status(
    arguments: list[str], status: int, said: str
) -> None:
    done = call("choose", *arguments)
    assert done.returncode == status and said in (done.stderr if status == 2 else done.stdout)
    assert "Traceback" not in done.stderr


def test_an_arch_image_goes_before_its_parent() -> None:
    small = image("cu126-torch27-sm90", SOURCES)
    machine = chooser.machine_from_options("H100", "", "580.65")
    found = choose([*IMAGES, small], machine, Options(torch=chooser.torch_range("2.7")))
    names = [one.name for one in found.fitting]
    assert names.index("cu126-torch27-sm90") < names.index("cu126-torch27")


def test_what_has_no_lock_is_not_taken_and_the_command_is_said() -> None:
    machine = chooser.machine_from_options("RTX 4090", "", "550.90")
    offers = [chooser.summarize(image, SOURCES.facts) for image in IMAGES]
    best = chooser.rank(offers, machine, Options()).fitting[0].name
    without = [
        one.model_copy(update={"blocked": "no lock" if one.name == best else ""}) for one in offers
    ]
    found = chooser.rank(without, machine, Options())
    assert best not in [one.name for one in found.fitting] and found.fitting
    said = ("has no lock: it can't be built before `nox -s lock` has made one",)
    assert ((best,), said) in found.others


@pytest.mark.parametrize(
    ("gpu", "driver", "torch", "builds", "why"),
    MACHINES["machines"],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_machines_get_the_builds_that_documents_say_run_there(
    gpu: str, driver: str, torch: str, builds: list[str], why: list[str]
) -> None:
    machine = chooser.machine_from_options(gpu, "", driver)
    of_this = [
        one
        for one in OFFERS
        if str(Minor.parse(one.torch)) == torch and not one.profile and not one.devel
    ]
    offered = {one.wheel_cuda for one in of_this if one.name.endswith("-arm64") == machine.arm}
    answers = [chooser.answer(one, machine, Options(python=one.python)) for one in of_this]
    assert {one.image.wheel_cuda for one in answers if not one.against} == offered & set(builds)
    assert (
        why
        and set(why) <= set(MACHINES["sources"])
        and (builds or all(one.against for one in answers))
    )


def test_what_passed_on_this_very_gpu_stands_first_and_modules_are_said() -> None:
    old = next(one for one in OFFERS if one.name == "cu130-torch211")
    offers = [
        one.model_copy(update={"passed_on": ["H200"]}) if one is old else one for one in OFFERS
    ]
    for gpu, first in (("NVIDIA H200 NVL", old.name), ("H100", "cu132-torch215")):
        assert (
            chooser.rank(offers, chooser.machine_from_options(gpu, "", "595.45.04"), Options())
            .fitting[0]
            .name
            == first
        )
    for gpu, needs in (
        ("RTX 5090", ["Blackwell open"]),
        ("V100", ["Volta proprietary"]),
        ("H100", []),
        ("GH200", ["Grace Hopper open"]),
    ):
        (best, *_) = chooser.rank(
            OFFERS, chooser.machine_from_options(gpu, "", "580.95"), Options()
        ).fitting
        told = [text for text in best.reasons if "kernel modules" in text]
        assert [
            text.replace(" needs the driver's", "").removesuffix(" kernel modules") for text in told
        ] == needs
    b200 = chooser.rank(
        OFFERS,
        chooser.machine_from_options("B200", "", ""),
        Options(torch=chooser.torch_range("2.8")),
    ).fitting[0]
    assert any(
        text.startswith("xformers ") and text.endswith("machine code of its own for sm_100")
        for text in b200.reasons
    )
    own = chooser.rank(
        OFFERS,
        chooser.machine_from_options("V100", "", ""),
        Options(torch=chooser.torch_range("2.8")),
    ).fitting[0]
    assert any(text.startswith("silently wrong: conv3d in bfloat16") for text in own.reasons), (
        own.reasons
    )
    said = call("choose", "--gpu", "V100", "--driver", "590.48").stdout
    assert "No image fits: branch 580 is the last driver for sm_70 (Volta)." in said
