"""Compiles wheels of packages that are published as source only, checks them and caches them."""

import json
import re
import shlex
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from images.config.facts import Facts
from images.config.names import Arch
from images.config.schema import Matrix
from images.context import base_images, render
from images.context.hosting import HostSettings
from images.context.labels import BaseContext
from images.context.render import Context, Stage
from images.context.templates import EPOCH, environment, step_macros
from images.engine import ContainerSpec, Engine
from images.engine.buildkit import BuildEvent, LogLine
from images.engine.failures import BuildFailed, classify
from images.engine.progress import Progress
from images.errors import Problem, UserError, command, failed, wrong
from images.host.hashing import sha256_of_file
from images.locking import lock_file
from images.planning import user_overlay
from images.planning.image import Image, Pin
from images.validation import validation_run
from images.validation.claims import image_claims
from images.validation.claims.context import ClaimContext
from images.validation.claims.device_code import kernel_code_claim, machine_code
from images.wheels import prebuilt
from images.wheels.prebuilt import FindWheel
from images.wheels.recipe import (
    FOLDER,
    NvccProvider,
    Recipe,
    jobs_for,
    no_nvcc,
    pins_of_torch_layer,
    recipe_for,
)
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import Verdict, judge
from validate.judging import Status

_NINJA_PROGRESS = re.compile(r"\s*\[(?P<done>\d+)/(?P<all>\d+)\] ")
_COMPILE_SCRIPT = "/run/recipe/compile.sh"
"""The script that compiles, as it stands in the name of its build step."""
_CLAIMS_OF_WHEELS = frozenset((("libraries", "environment"), ("symbols", "resolved")))
"""Check and subject of the claims of an image that every compiled wheel must keep."""


@dataclass(frozen=True, kw_only=True)
class WheelOptions:
    """How to build wheels, from the command line."""

    out: Path
    """Logs go to OUT/wheels/NAME/."""
    facts: Facts
    cache: Path
    locks: Path
    """The folder of locks."""
    jobs: int = 0
    """How many compilers run at once; 0: as many as cores and memory allow."""
    sdists: Path | None = None
    """A folder with source archives, for machines that reach no index."""


def wheel_builder(
    engine: Engine, matrix: Matrix, options: WheelOptions, host: HostSettings, progress: Progress
) -> FindWheel:
    """Return a function that finds the wheel of an image's pin in the cache, else compiles it.

    The function is `find_or_compile` for this matrix and engine. It can be called from several
    threads, and compiles one wheel at a time.
    """
    one_at_a_time = threading.Lock()

    def find(image: Image, pin: Pin) -> Path | None:
        return find_or_compile(
            image, pin, engine, matrix, options, host, progress, one_at_a_time=one_at_a_time
        )

    return find


def find_or_compile(
    image: Image,
    pin: Pin,
    engine: Engine,
    matrix: Matrix,
    options: WheelOptions,
    host: HostSettings,
    progress: Progress,
    *,
    one_at_a_time: threading.Lock,
) -> Path | None:
    """Return the wheel of an image's pin from the wheel cache, or else compile it.

    A pin is a package of the image at one version. Returns None for a pin that is not compiled
    here, or that has an official wheel. If a wheel can't be compiled for the image, raises
    UserError for a required pin; for an optional pin or optional extensions, warns and returns
    None. `one_at_a_time` is held while a wheel is compiled.
    """
    cached_wheel = prebuilt.find_cached_wheel(image, pin, matrix=matrix, folder=options.cache)
    if cached_wheel:
        return cached_wheel

    # The matrix says in a row of `sources` how a package is compiled. Others are not compiled.
    if pin.source not in matrix.sources or image.official_wheel(pin.name):
        return None
    try:
        recipe = recipe_for(image, pin.source, matrix)
    except UserError as error:
        is_required = not pin.optional and not pin.extension_source
        if is_required:
            raise
        progress.say(str(image.name), error.problems[0].cause, "yellow")
        return None
    # Images that are built at the same time may need the same wheel. The second one waits here, and
    # `build_wheel` then finds the wheel in the cache.
    with one_at_a_time:
        return build_wheel(engine, image, recipe, options, host, progress)


def _record_of(recipe: Recipe, built: Mapping[str, Any], verdict: Verdict) -> dict[str, Any]:
    """Return what the wheel cache keeps beside a wheel, as JSON: how it was made, and its verdict.

    `built` is what the compilers' record in the container says (templates/wheel/record.py).
    """
    judged = []
    for judgement in verdict.claims:
        judged.append(
            {
                "check": judgement.claim.check,
                "subject": judgement.claim.subject,
                "verdict": str(judgement.status),
                "reason": judgement.reason,
            }
        )
    return {
        "key": recipe.key,
        "recipe": asdict(recipe),
        "compilers": built["compilers"],
        "objects": built["objects"],
        "shim": built["shim"],
        "verdict": judged,
    }


def build_wheel(
    engine: Engine,
    image: Image,
    recipe: Recipe,
    options: WheelOptions,
    host: HostSettings,
    progress: Progress,
) -> Path:
    """Return the wheel of a recipe from the wheel cache; else compile, check and store it first.

    Raises UserError if it can't be compiled on this machine, if the compiler fails, or if the wheel
    does not pass its checks.
    """
    # Under this name, the display shows what is going on.
    label = f"{image.name} {recipe.package}"

    def warn(text: str) -> None:
        progress.say(label, text, "yellow")

    cached = prebuilt.find_compiled(options.cache, recipe.key, warn)
    if cached:
        return cached

    if image.base.custom:
        then = "compile it in your base yourself, and give the wheel with --wheelhouse FOLDER"
        raise wrong(
            str(image.name), "stands on a custom base, for which no wheel is compiled", then
        )
    _require_nvcc(engine, image, recipe, options.facts)
    base = base_images.acquire(
        engine,
        image.base,
        base_images.AUTO,
        root=options.locks.parent,
        host=host,
        on_progress=warn,
    )
    jobs = options.jobs or jobs_for(recipe, engine.facts.cpus, engine.facts.memory)
    context = builder_context(image, recipe, base, options, host=host.files(), jobs=jobs)
    progress.say(label, f"compiling {recipe.key}, {jobs} at once", "dim")

    tag = f"truetag-wheel:{recipe.key}"
    log = options.out / "wheels" / str(image.name) / f"{recipe.package}.log"
    try:
        _compile(engine, recipe, context, tag, log, host, progress, label)
        # The container is never started: it only gives access to the files of the built image.
        with engine.container(ContainerSpec(tag, ["true"])) as container:
            # The name of the wheel, and what the compilers did (templates/wheel/record.py).
            built: dict[str, Any] = json.loads(container.get_file("/wheel/record.json"))
            content = container.get_file(f"/wheel/{built['wheel']}")
        verdict = judge_wheel(engine, tag, image, recipe, content, options.facts, log)
    finally:
        engine.remove(tag, force=True)

    record = _record_of(recipe, built, verdict)
    wheel = prebuilt.store_compiled(options.cache, recipe.key, built["wheel"], content, record)
    progress.finish(label, f"kept as {wheel}")
    return wheel


def _compile(
    engine: Engine,
    recipe: Recipe,
    context: Context,
    tag: str,
    log: Path,
    host: HostSettings,
    progress: Progress,
    label: str,
) -> None:
    """Compile a wheel by building an image in which a step compiles it, and tag that image.

    recipe: how the package is compiled.
    context: the build context, whose Dockerfile compiles it.
    log: the file that gets the output of the build.
    label: under which name the build is shown on the terminal.

    Raises UserError with the compiler's first error if compiling fails, and BuildFailed if another
    build step does.
    """
    show = progress.job(label)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", buffering=1) as stream:

        def on_event(event: BuildEvent) -> None:
            """Show what happens in the build, and write what its steps print to the log."""
            show(event)
            if isinstance(event, LogLine):
                stream.write(f"{event.text}\n")
                # ninja prints `[3/120] ...` for each object that it compiles.
                count = _NINJA_PROGRESS.match(event.text)
                if count:
                    progress.say(label, f"object {count['done']} of {count['all']}", "dim")

        network = host.network(local=engine.facts.local, rootless=engine.facts.rootless)
        try:
            engine.build(context, tag, network=network, on_event=on_event, redact=host.redact)
        except BuildFailed as build_failed:
            # Only a failure of the step that runs the compilers is about the source.
            if _COMPILE_SCRIPT not in build_failed.step:
                raise
            raise _compiling_failed(build_failed, recipe, log) from build_failed


def _compiling_failed(build_failed: BuildFailed, recipe: Recipe, log: Path) -> UserError:
    """Return the error with the compiler's first error. `log` has the whole output of the build."""
    # The exception has only the end of the output; the first error may come before it.
    failure = classify(build_failed.error, log.read_text(encoding="utf-8").splitlines())
    return failed(
        f"{recipe.distribution} {recipe.version}",
        f"{failure.cause} ({failure.line})",
        f"{failure.then}; the log is {log}",
    )


def _require_nvcc(engine: Engine, image: Image, recipe: Recipe, facts: Facts) -> None:
    """Raise UserError unless the recipe's nvcc can be had here and accepts the base's gcc.

    A recipe says how a package is compiled, and where nvcc comes from. One without GPU code needs
    no nvcc. `facts` has the newest gcc that each nvcc accepts.
    """
    if recipe.provider is NvccProvider.NONE:
        return
    newest_gcc = facts.cuda[recipe.toolkit].gcc_max
    if recipe.gcc > newest_gcc:
        cause = (
            f"nvcc {recipe.toolkit} accepts gcc up to {newest_gcc}, but the base {recipe.base} has "
            f"gcc {recipe.gcc}"
        )
        then = (
            "compile it for the image with another Python, whose base has an older gcc (`bases` in "
            "matrix.yaml), or for an image of a newer CUDA"
        )
        raise wrong(str(image.name), cause, then)

    # The build itself fetches wheels and Debian's packages. But NVIDIA's image must be in the
    # engine, or in a registry that answers.
    if recipe.provider is NvccProvider.IMAGE:
        # `parts` is what to get from the provider: here, one image.
        (reference,) = recipe.parts
        if engine.find(reference) is None and engine.registry_digest(reference) is None:
            reason = f"it is taken from {reference}, for which no registry answers"
            then = (
                f"connect to a registry that has {reference}, or `docker load` it; for CUDA 12.4, "
                "13.0 and newer, nvcc comes without a registry"
            )
            raise no_nvcc(image, reason, then)


def judge_wheel(
    engine: Engine, tag: str, image: Image, recipe: Recipe, content: bytes, facts: Facts, log: Path
) -> Verdict:
    """Check a wheel that was just compiled, and return the verdict; raise UserError if it is bad.

    The wheel's version, its libraries and symbols, and its machine code for GPUs are checked.

    tag: the image that the wheel was compiled in, and where it is installed with torch.
    image: the image that the wheel is for.
    recipe: how it was compiled, and for which GPUs.
    content: the wheel file.
    log: the log of the compilation, which errors name.
    """
    claims = ClaimSet(image=tag, claims=tuple(_wheel_claims(image, recipe, content, facts)))
    evidence = validation_run.validate(engine, tag, claims, [Tier.STATIC])
    verdict = judge(claims, evidence, [Tier.STATIC])

    problems = []
    for judgement in verdict.claims:
        if judgement.status is Status.PASS:
            continue
        problem = Problem(
            where=f"{recipe.distribution} {recipe.version}",
            cause=f"was compiled, but the wheel is not kept: {judgement.claim.key} is "
            f"{judgement.status}: {judgement.reason}",
            then=f"look in {log} for what the compiler was asked to build, and for which GPUs; "
            f"correct `sources.{recipe.package}` in matrix.yaml (its `environment` or `patch`), "
            "then compile it again",
        )
        problems.append(problem)
    if problems:
        raise UserError(problems, code=1)
    return verdict


def _wheel_claims(image: Image, recipe: Recipe, content: bytes, facts: Facts) -> list[Claim]:
    """Return the claims by which a compiled wheel is judged.

    A claim is a statement that a check tests, such as that every symbol is found. `recipe` says how
    the wheel was compiled, and `content` is the wheel file. It is made for `image`, but judged in a
    smaller one, where it was compiled: that has only torch's layer and the wheel.
    """
    # Claims about other pins of `image` would fail in the smaller image.
    new_pin = Pin(name=recipe.distribution, version=recipe.version, layer="torch")
    builder_image = replace(image, pins=(*pins_of_torch_layer(image), new_pin), prebuilt=())

    # Judge only claims that the wheel can break.
    checked = {*_CLAIMS_OF_WHEELS, ("pins", recipe.distribution)}
    claims = []
    for claim in image_claims(ClaimContext(image=builder_image, facts=facts)).claims:
        if (claim.check, claim.subject) in checked:
            claims.append(claim)

    # Each kernel in its libraries must have machine code for each architecture. It is not known
    # which libraries have kernels, so all are named as those that may have some (`also`).
    if recipe.archs:
        required_code = machine_code([Arch.parse(arch) for arch in recipe.archs])
        code_claim = kernel_code_claim(
            image,
            recipe.distribution,
            files=[],
            archs=required_code,
            also=libraries(content),
        )
        claims.append(code_claim)
    return claims


def libraries(content: bytes) -> tuple[str, ...]:
    """Return the sorted paths of the shared libraries in a wheel file."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        members = archive.namelist()
    return tuple(sorted(path for path in members if re.search(r"\.so(?:\.\d+)*$", path)))


def _recipe_files(recipe: Recipe, options: WheelOptions) -> Context:
    """Return the files with which a build step compiles a wheel, as files of the build context.

    All are below `recipe/`: the programs that compile, the recipe's patch if it has one, variables
    (`env`), the source release with its hash (`source.txt`), and its archive if the user named a
    folder of archives (--sdists). Raises UserError if that folder lacks the archive.
    """
    # Path in the build context -> the content, or the path of a file of this machine.
    files: Context = {}
    for path in FOLDER.iterdir():
        if path.suffix in (".sh", ".py"):
            files[f"recipe/{path.name}"] = path.read_bytes()
    # The recipe names its patch by the hash.
    if recipe.patch:
        patches = {sha256_of_file(path): path for path in (FOLDER / "patches").glob("*.patch")}
        files["recipe/source.patch"] = patches[recipe.patch].read_bytes()
    exports = []
    for name, value in sorted(_compile_variables(recipe).items()):
        exports.append(f"export {name}={shlex.quote(value)}\n")
    files["recipe/env"] = "".join(exports).encode()
    requirement = f"{recipe.distribution}=={recipe.version} \\\n    --hash=sha256:{recipe.sdist}\n"
    files["recipe/source.txt"] = requirement.encode()
    # Without a folder of source archives, the build step downloads the archive.
    if options.sdists is not None:
        archive = _source_archive(recipe, options.sdists)
        files[f"recipe/{archive.name}"] = archive
    return files


def builder_context(
    image: Image,
    recipe: Recipe,
    base: BaseContext,
    options: WheelOptions,
    *,
    host: Mapping[str, bytes],
    jobs: int,
) -> Context:
    """Return the build context of the image in which the wheel of a recipe is compiled.

    It has the stages of a -devel image, with ccache, ninja and an nvcc that compiles only for the
    recipe's architectures (templates/wheel/). `host` are the files of this machine's settings,
    `jobs` is the number of compilers at once. Raises UserError if a lock is missing, or if the
    folder of source archives lacks the recipe's.
    """
    # The locks of what is installed beside torch, and what the steps of every image's build read.
    image_lock = lock_file.read(image, options.locks)
    locks = {"torch": image_lock.files["torch.txt"], "tools": image_lock.files["tools.txt"]}
    if recipe.provider is NvccProvider.WHEELS:
        locks["toolkit"] = _toolkit_lock(image, recipe, options.locks)
    locks["build"] = (FOLDER / "build.txt").read_bytes()
    files: Context = {f"locks/{name}.txt": content for name, content in locks.items()}
    files |= render.split_bottom_lock(files, "torch")
    files |= render.scripts()
    if base.packages:
        files["locks/debian.txt"] = base.packages
    files |= host

    files |= _recipe_files(recipe, options)

    files["Dockerfile"] = _dockerfile(image, recipe, base, files, jobs).encode()
    return dict(sorted(files.items()))


def _compile_variables(recipe: Recipe) -> dict[str, str]:
    """Return the environment variables with which a package is compiled, by name.

    Programs of templates/wheel read those that begin with TRUETAG.
    """
    variables = {}
    if recipe.provider is not NvccProvider.NONE:
        # For torch's extension builder and the setup.py of packages: where the toolkit is, what to
        # compile for, and that the builder has no GPU on purpose.
        archs = [Arch.parse(text) for text in recipe.archs]
        variables["CUDA_HOME"] = "/build/cuda"
        variables["TORCH_CUDA_ARCH_LIST"] = ";".join(arch.capability for arch in archs)
        variables["FORCE_CUDA"] = "1"

        # For nvcc.py, which /build/cuda has in place of nvcc: it calls the toolkit's nvcc for just
        # these architectures, whatever a setup.py asks for.
        variables["TRUETAG_NVCC"] = f"{recipe.toolkit_home}/bin/nvcc"
        variables["TRUETAG_ARCHS"] = " ".join(_number_of(arch) for arch in recipe.archs)
        variables["TRUETAG_PTX"] = " ".join(_number_of(arch) for arch in recipe.ptx)

    # For host.sh, which stands in for gcc: the processors that host code is compiled for.
    if recipe.cpu:
        variables["TRUETAG_CPU"] = recipe.cpu
    # A recipe may replace any of these.
    variables.update(recipe.environment)
    return variables


def _number_of(arch: str) -> str:
    """Return the digits of an architecture: `90` for `sm_90`."""
    return arch.removeprefix("sm_")


def _source_archive(recipe: Recipe, folder: Path) -> Path:
    """Return the source archive from which a recipe's wheel is compiled.

    It is found in `folder` by its sha256, which the recipe has as `sdist`, whatever its name.
    Raises UserError if it is not there.
    """
    for path in sorted(folder.glob("*.tar.gz")):
        if sha256_of_file(path) == recipe.sdist:
            return path
    cause = (
        f"this folder has no source archive of {recipe.distribution} {recipe.version} "
        f"with sha256 {recipe.sdist}"
    )
    release = f"{recipe.distribution}=={recipe.version}"
    then = f"`pip download --no-binary :all: --no-deps --dest {folder} {release}` gets it"
    raise wrong(str(folder), cause, then)


def _toolkit_lock(image: Image, recipe: Recipe, folder: Path) -> bytes:
    """Return the requirements with hashes of the CUDA toolkit's wheels that the recipe names.

    They are the content of a requirements file, taken from the lock of any -devel image with the
    same toolkit, below `folder`, the folder of locks. Raises UserError if there is none.
    """
    for lock_folder in sorted(folder.glob("*-devel*")):
        record = json.loads((lock_folder / lock_file.RECORD).read_text())
        # The toolkit's exact requirements are among those that are locked without dependencies.
        if record["alone"]["toolkit"] == list(recipe.parts):
            return (lock_folder / "toolkit.txt").read_bytes()
    devel = replace(image.name, devel=True, arch=None, profile=None)
    cause = (
        f"compiling takes nvcc of CUDA {recipe.toolkit}, and no lock has it, because no -devel "
        "image of this CUDA is locked"
    )
    then = f"`{command('lock', str(devel))}` makes such a lock; then give the command again"
    raise wrong(str(image.name), cause, then)


def _dockerfile(image: Image, recipe: Recipe, base: BaseContext, files: Context, jobs: int) -> str:
    """Return the text of the Dockerfile that compiles the wheel of a recipe.

    `image` is the one that it is compiled for, `base` the image that the build begins with. `files`
    are the other files of the build context; `jobs` is the number of compilers at once.
    """
    # Torch is installed as in the image itself. Where its lock was split, NVIDIA's libraries have a
    # stage of their own below it.
    index = render.index_arguments(image)
    has_libraries_stage = f"locks/{render.LIBRARIES}.txt" in files
    layers = [render.libraries_stage(index)] if has_libraries_stage else []
    torch = Stage(
        name="torch",
        below=render.LIBRARIES if has_libraries_stage else "system",
        holds=(f"torch {recipe.torch}",),
        lock=bool(render.locked_versions(files["locks/torch.txt"])),
        index=index,
        wheels_kept=False,
    )
    layers.append(torch)

    # Torch with the CUDA toolkit on top. Only the partial for nvcc from wheels reads it.
    compiler = Stage(
        name="compiler",
        below="torch",
        holds=(f"nvcc {recipe.toolkit}",),
        lock=False,
        toolkit_above=True,
    )
    # The templates put the compiler into the toolkit of a -devel image only.
    devel_image = replace(image, name=replace(image.name, devel=True))
    # NVIDIA's image with nvcc; empty if nvcc comes from elsewhere.
    source_image = recipe.parts[0] if recipe.provider is NvccProvider.IMAGE else ""
    template = environment().get_template("wheel/Dockerfile.j2")
    return template.render(
        image=devel_image,
        recipe=recipe,
        provider=recipe.provider,
        source=source_image,
        home=recipe.toolkit_home,
        base=base,
        user=user_overlay.USER,
        jobs=jobs,
        installer="",
        epoch=EPOCH,
        native_installer=False,
        **step_macros(offline=False),
        layers=layers,
        compiler=compiler,
    )
