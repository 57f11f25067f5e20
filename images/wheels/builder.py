"""Compiles packages that are published as source only into wheels, which the suite judges before the cache has them."""

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
from images.errors import Problem, UserError, command, wrong
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
from images.wheels.recipe import FOLDER, Recipe, beside, jobs_for, no_nvcc, recipe_for
from validate.claims import ClaimSet, Tier
from validate.judge import Verdict, judge
from validate.judging import Status

_NINJA = re.compile(r"\s*\[(?P<done>\d+)/(?P<all>\d+)\] ")
_STEP = "/run/recipe/compile.sh"
_JUDGED = {("libraries", "environment"), ("symbols", "resolved")}


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
    """Compilers at once; 0: what cores and memory allow."""
    sdists: Path | None = None
    """A folder with source archives, for machines that reach no index."""


def wheel_builder(
    engine: Engine, matrix: Matrix, options: WheelOptions, host: HostSettings, progress: Progress
) -> FindWheel:
    """A finder that compiles what the wheel cache lacks and nobody else publishes.

    The finder raises UserError for a required pin that can't be compiled. An optional one is left out with a warning.
    """
    look = prebuilt.wheel_finder(matrix, options.cache)
    one_at_a_time = threading.Lock()

    def find(image: Image, pin: Pin) -> Path | None:
        if cached := look(image, pin):
            return cached
        row = pin.extensions or pin.name
        if row not in matrix.sources or any(one.name == pin.name for one in image.prebuilt):
            return None
        try:
            recipe = recipe_for(image, row, matrix)
        except UserError as error:
            if not (pin.optional or pin.extensions):
                raise
            progress.say(str(image.name), error.problems[0].cause, "yellow")
            return None
        with one_at_a_time:  # builds beside each other may ask for the same wheel
            return build_wheel(engine, image, recipe, options, host, progress)

    return find


def build_wheel(
    engine: Engine,
    image: Image,
    recipe: Recipe,
    options: WheelOptions,
    host: HostSettings,
    progress: Progress,
) -> Path:
    """Return the wheel of a recipe for an image: from the wheel cache, else compiled, judged and stored there.

    Raises UserError: it can't be compiled here, it did not compile, it does not keep what it was asked for.
    """
    label = f"{image.name} {recipe.package}"

    def warn(text: str) -> None:
        progress.say(label, text, "yellow")

    cached = prebuilt.find_compiled(options.cache, recipe.key, warn)
    if cached:
        return cached

    _require_nvcc(engine, image, recipe, options.facts)
    base = base_images.acquire(
        engine, image.base, base_images.AUTO, root=options.locks.parent, host=host, on_progress=warn
    )
    jobs = options.jobs or jobs_for(recipe, engine.facts.cpus, engine.facts.memory)
    files = builder_context(image, recipe, base, options, host=host.files(), jobs=jobs)
    progress.say(label, f"compiling {recipe.key}, {jobs} at once", "dim")

    tag, log = (
        f"truetag-wheel:{recipe.key}",
        options.out / "wheels" / str(image.name) / f"{recipe.package}.log",
    )
    try:
        _compile(engine, recipe, files, tag, log, host, progress, label)
        with engine.container(ContainerSpec(tag, ["true"])) as container:
            made: dict[str, Any] = json.loads(container.get_file("/wheel/record.json"))
            content = container.get_file(f"/wheel/{made['wheel']}")
        verdict = judge_wheel(engine, tag, image, recipe, content, options.facts, log)
    finally:
        engine.remove(tag, force=True)

    record = {
        "key": recipe.key,
        "recipe": asdict(recipe),
        "compilers": made["compilers"],
        "objects": made["objects"],
        "shim": made["shim"],
        "verdict": [
            {
                "check": row.claim.check,
                "subject": row.claim.subject,
                "verdict": str(row.status),
                "reason": row.reason,
            }
            for row in verdict.claims
        ],
    }
    wheel = prebuilt.store_compiled(options.cache, recipe.key, made["wheel"], content, record)
    progress.finish(label, f"kept as {wheel}")
    return wheel


def _compile(
    engine: Engine,
    recipe: Recipe,
    files: Context,
    tag: str,
    log: Path,
    host: HostSettings,
    progress: Progress,
    label: str,
) -> None:
    """Build the builder's context. Raises UserError with the compiler's first error."""
    show = progress.job(label)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8", buffering=1) as stream:

        def on_event(event: BuildEvent) -> None:
            show(event)
            if isinstance(event, LogLine):
                stream.write(f"{event.text}\n")
                if counted := _NINJA.match(event.text):
                    progress.say(label, f"object {counted['done']} of {counted['all']}", "dim")

        try:
            network = host.network(local=engine.facts.local)
            engine.build(files, tag, network=network, on_event=on_event, redact=host.redact)
        except BuildFailed as failed:
            if _STEP not in failed.step:
                raise
            # The exception has the end of the log only; the first error may stand before it.
            failure = classify(failed.error, log.read_text(encoding="utf-8").splitlines())
            cause, then = f"{failure.cause} ({failure.line})", f"{failure.then}; the log is {log}"
            where = f"{recipe.distribution} {recipe.version}"
            raise UserError(Problem(where=where, cause=cause, then=then), code=1) from failed


def _require_nvcc(engine: Engine, image: Image, recipe: Recipe, facts: Facts) -> None:
    """Raises UserError unless this machine can have the nvcc, and it goes with the base's gcc."""
    newest = facts.cuda[recipe.toolkit].gcc_max if recipe.toolkit else recipe.gcc
    if recipe.gcc > newest:
        cause = (
            f"nvcc {recipe.toolkit} accepts gcc up to {newest}, {recipe.base} has gcc {recipe.gcc}"
        )
        raise wrong(str(image.name), cause, "take an image on another base, or newer CUDA")
    if recipe.provider != "image":
        return
    (reference,) = recipe.parts
    if engine.find(reference) is None and engine.registry_digest(reference) is None:
        raise no_nvcc(image, f"it comes from {reference}, and no registry answers")


def judge_wheel(
    engine: Engine, tag: str, image: Image, recipe: Recipe, content: bytes, facts: Facts, log: Path
) -> Verdict:
    """Symbols and device code of the new wheel beside torch. Raises UserError unless every claim holds."""
    new = Pin(name=recipe.distribution, version=recipe.version, layer="torch")
    beside_torch = replace(image, pins=(*beside(image), new), prebuilt=())
    everything = image_claims(ClaimContext(image=beside_torch, facts=facts)).claims
    judged = [
        one
        for one in everything
        if (one.check, one.subject) in {*_JUDGED, ("pins", recipe.distribution)}
    ]
    if recipe.archs:
        archs = machine_code([Arch.parse(arch) for arch in recipe.archs])
        judged.append(
            kernel_code_claim(image, recipe.distribution, [], archs, also=libraries(content))
        )
    claims = ClaimSet(image=tag, claims=tuple(judged))
    evidence = validation_run.validate(engine, tag, claims, [Tier.STATIC])
    verdict = judge(claims, evidence, [Tier.STATIC])
    where, then = (
        f"{recipe.distribution} {recipe.version}",
        f"it is not kept; what did the compiler do? {log}",
    )
    problems = [
        Problem(
            where=where,
            cause=f"compiled, but {one.claim.key} is {one.status}: {one.reason}",
            then=then,
        )
        for one in verdict.claims
        if one.status is not Status.PASS
    ]
    if problems:
        raise UserError(problems, code=1)
    return verdict


def libraries(content: bytes) -> tuple[str, ...]:
    """The libraries in a wheel."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return tuple(
            sorted(name for name in archive.namelist() if re.search(r"\.so(?:\.\d+)*$", name))
        )


def builder_context(
    image: Image,
    recipe: Recipe,
    base: BaseContext,
    options: WheelOptions,
    *,
    host: Mapping[str, bytes],
    jobs: int,
) -> Context:
    """The builder's whole build context.

    It has a -devel image's stages, with ccache, ninja and an nvcc that keeps to the recipe's architectures
    (templates/wheel/). host: files under host/; jobs: compilers at once. Raises UserError: no lock, no source archive
    of the recipe's hash.
    """
    own = lock_file.read(image, options.locks)
    locks = {"torch": own.files["torch.txt"], "tools": own.files["tools.txt"]}
    if recipe.provider == "wheels":
        locks["toolkit"] = _toolkit_lock(image, recipe, options.locks)
    locks["build"] = (FOLDER / "build.txt").read_bytes()
    files: Context = {f"locks/{name}.txt": content for name, content in locks.items()}
    files |= render.split_bottom_lock(files, "torch")
    files |= render.scripts()
    files |= {"locks/debian.txt": base.packages} if base.packages else {}
    files |= host
    files |= {
        f"recipe/{path.name}": path.read_bytes()
        for path in FOLDER.iterdir()
        if path.suffix in (".sh", ".py")
    }
    if recipe.patch:
        patches = {sha256_of_file(path): path for path in (FOLDER / "patches").glob("*.patch")}
        files["recipe/source.patch"] = patches[recipe.patch].read_bytes()
    numbers = [arch.removeprefix("sm_") for arch in recipe.archs]
    of_toolkit = {
        "TORCH_CUDA_ARCH_LIST": ";".join(f"{number[:-1]}.{number[-1]}" for number in numbers),
        "FORCE_CUDA": "1",
        "CUDA_HOME": "/build/cuda",
        "TRUETAG_NVCC": f"{recipe.home}/bin/nvcc",
        "TRUETAG_ARCHS": " ".join(numbers),
        "TRUETAG_PTX": " ".join(arch.removeprefix("sm_") for arch in recipe.ptx),
    }
    variables = {
        **(of_toolkit if recipe.home else {}),
        **({"TRUETAG_CPU": recipe.cpu} if recipe.cpu else {}),
        **recipe.environment,
    }
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    files["recipe/env"] = "".join(exports).encode()
    source = f"{recipe.distribution}=={recipe.version} \\\n    --hash=sha256:{recipe.sdist}\n"
    files["recipe/source.txt"] = source.encode()
    if options.sdists is not None:  # else the step downloads its own
        archives = sorted(options.sdists.glob("*.tar.gz"))
        if not (
            archive := next(
                (path for path in archives if sha256_of_file(path) == recipe.sdist), None
            )
        ):
            cause = f"holds no source archive of {recipe.distribution} {recipe.version} with sha256 {recipe.sdist}"
            raise wrong(
                str(options.sdists), cause, "`pip download --no-binary :all: --no-deps` gets it"
            )
        files[f"recipe/{archive.name}"] = archive
    files["Dockerfile"] = _dockerfile(image, recipe, base, files, jobs).encode()
    return dict(sorted(files.items()))


def _toolkit_lock(image: Image, recipe: Recipe, folder: Path) -> bytes:
    """The hashes of a devel toolkit's wheels, from any -devel image's lock that has these. Raises UserError."""
    for place in sorted(folder.glob("*-devel*")):
        if json.loads((place / lock_file.RECORD).read_text())["alone"]["toolkit"] == list(
            recipe.parts
        ):
            return (place / "toolkit.txt").read_bytes()
    devel = replace(image.name, devel=True, arch=None, profile=None)
    cause = f"no lock of a -devel image holds the devel toolkit of CUDA {recipe.toolkit}"
    raise wrong(str(image.name), cause, f"`{command('lock', str(devel))}` makes one")


def _dockerfile(image: Image, recipe: Recipe, base: BaseContext, files: Context, jobs: int) -> str:
    index = render.index_arguments(image)
    below = [render.libraries_stage(index)] if f"locks/{render.LIBRARIES}.txt" in files else []
    torch = Stage(
        name="torch",
        below=below[-1].name if below else "system",
        holds=(f"torch {recipe.torch}",),
        lock=bool(render.locked_versions(files["locks/torch.txt"])),
        index=index,
        wheels_kept=False,
    )
    page, holds = environment().get_template("wheel/Dockerfile.j2"), (f"nvcc {recipe.toolkit}",)
    return page.render(
        image=replace(image, name=replace(image.name, devel=True)),
        recipe=recipe,
        provider=recipe.provider,
        source=recipe.parts[0] if recipe.provider == "image" else "",
        home=recipe.home,
        base=base,
        user=user_overlay.USER,
        jobs=jobs,
        installer="",
        epoch=EPOCH,
        native_installer=False,
        **step_macros(offline=False),
        layers=[*below, torch],
        compiler=Stage(name="compiler", below="torch", holds=holds, lock=False, toolkit_above=True),
    )
