"""Packages that are published as source only, compiled once into wheels that any image of the same key takes.

A recipe says everything that a wheel depends on; its hash is the wheel's key. The builder is a -devel image's stages
with ccache, ninja and an nvcc that keeps to the asked architectures (templates/wheel/). What comes out of it is judged
by the suite before it is kept.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from images.config import paths
from images.config.facts import Facts
from images.config.matrix import Matrix, SourceRow
from images.config.names import Arch
from images.config.paths import TEMPLATES
from images.context import base_images, render
from images.context.base_context import BaseContext
from images.context.hosting import HostSettings
from images.context.render import Context, Stage
from images.context.templates import EPOCH, environment, step_macros
from images.engine import BuildSpec, ContainerSpec, Engine
from images.engine.buildkit import BuildEvent, BuildResult, LogLine
from images.engine.failures import BuildFailed, FailureKind
from images.engine.progress import Progress
from images.errors import Problem, UserError
from images.host.hashing import sha256, sha256_of_file
from images.locking import lock_file
from images.planning.image import Image, Pin
from images.validation import trial
from images.validation.claims.context import ClaimContext
from images.validation.claims.device_code import code_claim
from images.validation.claims.image import image_claims
from images.wheels import prebuilt
from images.wheels.cache import CachedWheel, WheelCache
from images.wheels.prebuilt import FindWheel
from validate.claims import Claim, ClaimSet, Tier
from validate.judge import Verdict, judge
from validate.judging import Status

FOLDER = TEMPLATES / "wheel"
_METHOD = 1
"""Raised when the builder changes in a way that changes what comes out of it."""
_GIB = 1024**3
_NINJA = re.compile(r"\s*\[(?P<done>\d+)/(?P<all>\d+)\] ")
_STEP = "/run/recipe/compile.sh"
_JUDGED = {("S3", "environment"), ("S4", "symbols")}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one package is compiled for one image: all that its wheel depends on."""

    package: str
    """Its row under `sources` in the matrix."""
    distribution: str
    version: str
    sdist: str
    """sha256 of the source archive."""
    environment: Mapping[str, str]
    """What its setup.py is told."""
    torch: str
    wheel_cuda: str
    cxx11_abi: bool
    python: str
    base: str
    """Its name in the matrix; the digest of a custom base."""
    gcc: int
    """Major of the base's compiler; 0: that of Debian's packages, in a custom base that has none."""
    provider: str
    """Where nvcc comes from: `wheels`, `image`, `debian`, a custom `base`; `none` where no GPU code is compiled."""
    toolkit: str
    parts: tuple[str, ...]
    """What the provider is asked for: requirements, an image, a Debian suite; a custom base's nvcc by its version."""
    archs: tuple[str, ...]
    """`sm_90` and the like: machine code for these."""
    ptx: tuple[str, ...] = ()
    job_memory: int = 2
    """GiB that one compiler needs at most. No part of the key."""

    @property
    def key(self) -> str:
        """Names the wheel: PACKAGE-VERSION-HASH."""
        depends = {name: value for name, value in asdict(self).items() if name not in ("package", "job_memory")}
        depends |= {"method": _METHOD, "tools": (FOLDER / "build.txt").read_text()}
        digest = sha256(json.dumps(depends, sort_keys=True).encode())
        return f"{self.package}-{self.version}-{digest[:16]}"

    @property
    def home(self) -> str:
        """Where the toolkit lies in the builder; empty where there is none."""
        return f"/usr/local/cuda-{self.toolkit}" if self.toolkit else ""


@dataclass(frozen=True, kw_only=True)
class BaseCompilers:
    """What a custom base has for compiling."""

    digest: str
    gcc: int
    """Major of its g++; 0: it has none."""
    nvcc: str
    """What its nvcc of the image's toolkit calls itself; empty: it has none."""


@dataclass(frozen=True, kw_only=True)
class WheelOptions:
    """How to build, as the command line says it."""

    out: Path
    """Logs go to OUT/wheels/NAME/."""
    facts: Facts
    cache: WheelCache
    jobs: int = 0
    """Compilers at once; 0: what cores and memory allow."""
    recompile: bool = False
    """Compile what is in the cache already, too."""
    sdists: Path | None = None
    """A folder with source archives, for machines that reach no index."""
    pinned_bases: Mapping[str, str] = field(default_factory=dict)
    base: str = "auto"
    """`auto`, or a custom base: its wheels are for images on that very base."""
    wheelhouse: Path | None = None
    """A folder with the wheels that build wheels, for `offline`."""
    offline: bool = False
    """No step reaches a network."""


@dataclass(frozen=True, kw_only=True)
class BuiltWheel:
    """One wheel that was asked for."""

    recipe: Recipe
    cached: CachedWheel
    compiled: int
    """Objects compiled by this call."""
    from_cache: int
    """Objects that an earlier call, one that was interrupted say, had finished."""
    seconds: float
    """0: it was taken as it lay there."""

    def __str__(self) -> str:
        size = f"{self.cached.record['bytes'] / 1e6:.1f} MB"
        if not self.seconds:
            return f"{self.recipe.key}: taken from the wheel cache, 0 compilations ({size}, {self.cached.wheel})"
        counts = f"{self.compiled} objects compiled, {self.from_cache} from earlier runs"
        return f"{self.recipe.key}: {counts}, in {self.seconds:.0f} s ({size}, {self.cached.wheel})"


# --- recipes --------------------------------------------------------------------------------------------------------


def recipe(image: Image, package: str, matrix: Matrix) -> Recipe:
    """How a package is compiled for an image. Raises UserError: it can't be, with the reason."""
    row = matrix.sources.get(package)
    if row is None:
        cause = f"`sources` has {', '.join(matrix.sources) or 'nothing'}"
        then = "name it under `sources` in matrix.yaml, with the hash of its source archive"
        raise UserError(Problem(where=package, cause=f"is no package that is compiled here: {cause}", then=then))
    version = _version(image, package, row)
    archs = tuple(arch for arch in image.archs if arch >= Arch.parse(row.floor)) if row.nvcc else ()
    if row.nvcc and not archs:
        cause = f"compiles for {Arch.parse(row.floor)} and newer, the image promises {' '.join(map(str, image.archs))}"
        raise UserError(Problem(where=f"{package} for {image.name}", cause=cause, then="leave it out of this image"))
    provider, parts = _provider(image, matrix) if row.nvcc else ("none", ())
    torch = image.pin("torch")
    return Recipe(
        package=package,
        distribution=row.distribution or package,
        version=version,
        sdist=row.releases[version],
        environment=dict(sorted(_told(row, archs).items())),
        torch=torch.version if torch else "",
        wheel_cuda=str(image.wheel_cuda),
        cxx11_abi=image.cxx11_abi,
        python=str(image.python),
        base=image.base.key,
        gcc=matrix.bases[image.base.key].gcc,
        provider=provider,
        toolkit=str(image.toolkit_cuda) if row.nvcc else "",
        parts=parts,
        archs=tuple(map(str, archs)),
        ptx=tuple(map(str, archs[-1:])) if row.ptx else (),
        job_memory=row.job_memory,
    )


def for_base(compilers: BaseCompilers | None, wanted: Recipe) -> Recipe:
    """The recipe on a custom base: its wheel depends on that very base, and on the nvcc in it."""
    if compilers is None:
        return wanted
    there = replace(wanted, base=compilers.digest, gcc=compilers.gcc)
    return replace(there, provider="base", parts=(compilers.nvcc,)) if compilers.nvcc and wanted.archs else there


def packages(image: Image, matrix: Matrix) -> tuple[str, ...]:
    """The packages of an image that can be compiled here."""
    return tuple(name for name, row in matrix.sources.items() if image.pin(row.distribution or name))


def wheel_finder(
    matrix: Matrix, cache: WheelCache, compilers: Callable[[Image], BaseCompilers | None] = lambda _image: None
) -> FindWheel:
    """Looks for the wheel of an image's pin among those compiled here; `compilers` reads those of a custom base."""

    def find(image: Image, pin: Pin) -> Path | None:
        if pin.name not in matrix.sources:
            return None
        try:
            wanted = recipe(image, pin.name, matrix)
        except UserError:  # nobody can compile it: the plan says why
            return None
        cached = cache.find(for_base(compilers(image), wanted).key)
        return cached.wheel if cached else None

    return find


def wheel_builder(
    engine: Engine, matrix: Matrix, options: WheelOptions, host: HostSettings, progress: Progress
) -> FindWheel:
    """Looks as `wheel_finder` does, and compiles what is not there and nobody else publishes.

    What it is given raises UserError for a required pin that can't be compiled; an optional one is told and left out.
    """
    look = wheel_finder(matrix, options.cache, lambda image: read_base_compilers(engine, image, options.base))
    one_at_a_time = threading.Lock()

    def find(image: Image, pin: Pin) -> Path | None:
        if cached := look(image, pin):
            return cached
        if pin.name not in matrix.sources or any(row.name == pin.name for row in image.prebuilt):
            return None
        try:
            wanted = recipe(image, pin.name, matrix)
        except UserError as error:
            if not pin.optional:
                raise
            progress.say(str(image.name), error.problems[0].cause, "yellow")
            return None
        with one_at_a_time:  # builds beside each other may ask for the same wheel
            return build_wheel(engine, image, wanted, options, host, progress).cached.wheel

    return find


def _version(image: Image, package: str, row: SourceRow) -> str:
    torch = image.pin("torch")
    if torch and not SpecifierSet(row.torch).contains(torch.version, prereleases=True):
        cause = f"compiles on torch {row.torch} (`sources.{package}.torch`), the image has {torch.version}"
        raise UserError(Problem(where=f"{package} for {image.name}", cause=cause, then="leave it out of this image"))
    pin = image.pin(row.distribution or package)
    version = pin.version if pin else max(row.releases, key=Version)
    if version not in row.releases:
        cause = f"the image pins {version}, `sources.{package}.releases` has {', '.join(row.releases)}"
        then = "add that release with the sha256 of its source archive to matrix.yaml"
        raise UserError(Problem(where=f"{package} for {image.name}", cause=cause, then=then))
    return version


def _provider(image: Image, matrix: Matrix) -> tuple[str, tuple[str, ...]]:
    """Who has an nvcc of the image's toolkit: wheels, a Debian suite, NVIDIA's image."""
    row = matrix.toolkits[str(image.toolkit_cuda)]
    if row.devel:
        return "wheels", (*row.parts, *row.devel)
    if row.compiler is None:
        raise _no_nvcc(image, f"`toolkits.{image.toolkit_cuda}` in matrix.yaml names no provider")
    return ("debian", (row.compiler.debian,)) if row.compiler.debian else ("image", (row.compiler.image,))


def _no_nvcc(image: Image, why: str) -> UserError:
    cause = f"there is no nvcc for CUDA {image.toolkit_cuda} here: {why}"
    then = (
        "wheels hold an nvcc from CUDA 13.0 on, Debian trixie's packages 12.4; for others connect to a registry that "
        "has NVIDIA's devel image, or `docker load` it"
    )
    return UserError(Problem(where=str(image.name), cause=cause, then=then), code=1)


def _told(row: SourceRow, archs: Sequence[Arch]) -> dict[str, str]:
    """The row's variables, with the architectures in the form that each asks for."""
    numbers = ";".join(f"{arch.major}{arch.minor}" for arch in archs)
    capabilities = ";".join(arch.capability for arch in archs)
    return {
        name: value.replace("{numbers}", numbers).replace("{capabilities}", capabilities)
        for name, value in row.environment.items()
    }


# --- building -------------------------------------------------------------------------------------------------------


def build_wheel(
    engine: Engine, image: Image, wanted: Recipe, options: WheelOptions, host: HostSettings, progress: Progress
) -> BuiltWheel:
    """The wheel of a recipe for an image: taken from the wheel cache, else compiled, judged and kept.

    Raises UserError: it can't be compiled here, it did not compile, it does not keep what it was asked for.
    """
    start, job = time.monotonic(), f"{image.name} {wanted.package}"
    wanted = for_base(read_base_compilers(engine, image, options.base), wanted)
    cached = options.cache.find(wanted.key, lambda text: progress.say(job, text, "yellow"))
    if cached and not options.recompile:
        return BuiltWheel(recipe=wanted, cached=cached, compiled=0, from_cache=0, seconds=0)
    _require_provider(engine, image, wanted, options.facts)
    base = base_images.acquire_for(
        engine,
        replace(image, pins=_beside(image)),
        options.base,
        pinned=options.pinned_bases,
        host=host,
        say=lambda text: progress.say(job, text, "yellow"),
    )
    jobs = options.jobs or jobs_for(wanted, engine.facts.cpus, engine.facts.memory)
    progress.say(job, f"compiling {wanted.key}, {jobs} at once", "dim")
    files = context(
        image,
        wanted,
        base_images.base_context(base),
        host.files(),
        jobs,
        options.sdists,
        wheelhouse=options.wheelhouse,
        offline=options.offline,
    )
    network = host.network(local=engine.facts.local, offline=options.offline)
    tag = f"truetag-wheel:{wanted.key}"
    log = options.out / "wheels" / str(image.name) / f"{wanted.package}.log"
    try:
        run = partial(engine.build, files, tag, BuildSpec(network_mode=network), redact=host.redact)
        ran = _compile(run, wanted, progress, job, log)
        done, content = _fetch(engine, tag)
        verdict = _judge(engine, tag, image, wanted, content, options.facts, log)
    finally:
        engine.remove(tag, force=True)
    seconds = time.monotonic() - start
    record = _record(wanted, done, verdict, base.digest, jobs, seconds)
    cached = options.cache.store(wanted.key, done["wheel"], content, record)
    progress.finish(job, f"kept as {cached.wheel}")
    compiled, finished = done["objects"]["compiled"], done["objects"]["from_cache"]
    return BuiltWheel(
        recipe=wanted,
        cached=cached,
        compiled=compiled if ran else 0,
        from_cache=finished if ran else finished + compiled,
        seconds=seconds,
    )


def read_base_compilers(engine: Engine, image: Image, reference: str) -> BaseCompilers | None:
    """What a custom base has for compiling; None: `reference` is none. Raises UserError: it can't be read."""
    if reference == "auto":
        return None
    info = engine.find(reference) or engine.pull(reference)
    nvcc = f"{image.toolkit_home}/bin/nvcc"
    script = f'echo "$(g++ -dumpversion 2>/dev/null)"; [ ! -x {nvcc} ] || {nvcc} --version | tail -n 1'
    spec = ContainerSpec(reference, ["sh", "-c", script], name=f"{reference} (reading its compilers)")
    with engine.container(spec) as box:
        done = box.run(timeout=60)
    gcc, _, said = done.stdout.partition("\n")
    return BaseCompilers(digest=info.id, gcc=int(gcc.partition(".")[0] or 0), nvcc=said.strip())


def jobs_for(wanted: Recipe, cpus: int, memory: int) -> int:
    """Compilers at once: a core each, and the memory that this package's largest file takes. `memory` in bytes."""
    return max(1, min(cpus, memory // (wanted.job_memory * _GIB)))


def context(
    image: Image,
    wanted: Recipe,
    base_context: BaseContext,
    host: Mapping[str, bytes],
    jobs: int,
    sdists: Path | None = None,
    *,
    wheelhouse: Path | None = None,
    offline: bool = False,
) -> Context:
    """The builder's whole build context. Raises UserError: no lock, no source archive of that hash, and (`offline`)
    what the wheelhouse lacks.
    """
    own = lock_file.read(image)
    locks = {"torch": render.less(own.files["torch.txt"], base_context.kept), "tools": own.files["tools.txt"]}
    if wanted.provider == "wheels":
        locks["toolkit"] = _toolkit_lock(image, wanted)
    locks["build"] = (FOLDER / "build.txt").read_bytes()
    files: Context = {f"locks/{name}.txt": content for name, content in locks.items()}
    files |= render.parted(files, "torch")
    files |= {f"scripts/{path.name}": path.read_bytes() for path in sorted((TEMPLATES / "scripts").iterdir())}
    files |= host
    if offline:
        files |= {f"wheels/{path.name}": path for path in _stock(locks, wheelhouse)}
        files["host/env"] = render.offline(files["host/env"])
    parts = [path for path in sorted(FOLDER.iterdir()) if path.suffix in (".sh", ".py")]
    files |= {f"recipe/{path.name}": path.read_bytes() for path in parts}
    files["recipe/env"] = _variables(wanted)
    files["recipe/source.txt"] = _source(wanted)
    if archive := _archive(wanted, sdists):
        files[f"recipe/{archive.name}"] = archive
    files["Dockerfile"] = _dockerfile(image, wanted, base_context, jobs, files, offline=offline).encode()
    return dict(sorted(files.items()))


def _stock(locks: Mapping[str, bytes], wheelhouse: Path | None) -> Iterator[Path]:
    rows = (lock_file.parse_requirements(content, f"{name}.txt") for name, content in locks.items())
    yield from prebuilt.in_stock([package for packages in rows for package in packages], wheelhouse).values()


def _toolkit_lock(image: Image, wanted: Recipe) -> bytes:
    """The hashes of a whole toolkit's wheels, from any -devel image's lock that has these. Raises UserError."""
    for place in sorted(paths.workspace().locks.glob("*-devel*")):
        if json.loads((place / lock_file.RECORD).read_text())["alone"]["toolkit"] == list(wanted.parts):
            return (place / "toolkit.txt").read_bytes()
    devel = replace(image.name, devel=True, arch=None, profile=None)
    cause = f"no lock of a -devel image holds the whole CUDA {wanted.toolkit} toolkit"
    raise UserError(Problem(where=str(image.name), cause=cause, then=f"`nox -s lock -- {devel}` makes one"))


def _variables(wanted: Recipe) -> bytes:
    numbers = [arch.removeprefix("sm_") for arch in wanted.archs]
    ptx = [arch.removeprefix("sm_") for arch in wanted.ptx]
    told = {
        "TORCH_CUDA_ARCH_LIST": ";".join(f"{number[:-1]}.{number[-1]}" for number in numbers),
        "FORCE_CUDA": "1",
        "CUDA_HOME": "/build/cuda",
        "TRUETAG_NVCC": f"{wanted.home}/bin/nvcc",
        "TRUETAG_ARCHS": " ".join(numbers),
        "TRUETAG_PTX": " ".join(ptx),
    }
    told = {**(told if wanted.home else {}), **wanted.environment}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(told.items())).encode()


def _source(wanted: Recipe) -> bytes:
    return f"{wanted.distribution}=={wanted.version} \\\n    --hash=sha256:{wanted.sdist}\n".encode()


def _archive(wanted: Recipe, folder: Path | None) -> Path | None:
    """The source archive in a folder, by hash. Raises UserError when it isn't there."""
    if folder is None:
        return None
    for path in sorted(paths.workspace().locks.glob("*.tar.gz")):
        if sha256_of_file(path) == wanted.sdist:
            return path
    cause = f"holds no source archive of {wanted.distribution} {wanted.version} with sha256 {wanted.sdist}"
    raise UserError(Problem(where=str(folder), cause=cause, then="`pip download --no-binary :all: --no-deps` gets it"))


def _dockerfile(
    image: Image, wanted: Recipe, base_context: BaseContext, jobs: int, files: Context, *, offline: bool
) -> str:
    macros = step_macros(offline=offline)
    whole = replace(image, name=replace(image.name, devel=True))
    index = "" if offline else render.index(image)
    below = [render.libraries(index)] if f"locks/{render.LIBRARIES}.txt" in files else []
    torch = Stage(
        name="torch",
        below=below[-1].name if below else "system",
        holds=(f"torch {wanted.torch}",),
        lock=render.names_something(files["locks/torch.txt"]),
        index=index,
        wheels_kept=False,
    )
    return (
        environment()
        .get_template("wheel/Dockerfile.j2")
        .render(
            image=whole,
            recipe=wanted,
            provider=wanted.provider,
            source=wanted.parts[0] if wanted.provider == "image" else "",
            home=wanted.home,
            base=base_context,
            user=render.USER,
            jobs=jobs,
            installer=next((Path(path).name for path in files if path.startswith("wheels/uv-")), ""),
            mounts=macros.mounts,
            slice=macros.slice,
            seal=macros.seal,
            epoch=EPOCH,
            layers=[*below, torch],
            compiler=Stage(
                name="compiler", below="torch", holds=(f"nvcc {wanted.toolkit}",), lock=False, toolkit_above=True
            ),
        )
    )


def _require_provider(engine: Engine, image: Image, wanted: Recipe, facts: Facts) -> None:
    """Raises UserError unless this machine can have the nvcc, and it goes with the base's gcc."""
    newest = facts.cuda[wanted.toolkit].gcc_max if wanted.toolkit else wanted.gcc
    if wanted.gcc > newest:
        cause = f"nvcc {wanted.toolkit} accepts gcc up to {newest}, {wanted.base} has gcc {wanted.gcc}"
        raise UserError(
            Problem(where=str(image.name), cause=cause, then="take an image on another base, or newer CUDA")
        )
    if wanted.provider != "image":
        return
    (reference,) = wanted.parts
    if engine.find(reference) is None and engine.registry_digest(reference) is None:
        raise _no_nvcc(image, f"it comes from {reference}, and no registry answers")


def _compile(run: Callable[..., BuildResult], wanted: Recipe, progress: Progress, job: str, log: Path) -> bool:
    """Whether anything was run: a step that the engine has cached compiles nothing."""
    log.parent.mkdir(parents=True, exist_ok=True)
    shown = progress.job(job)
    with log.open("w", encoding="utf-8", buffering=1) as stream:

        def on_event(event: BuildEvent) -> None:
            shown(event)
            if isinstance(event, LogLine):
                stream.write(f"{event.text}\n")
                if counted := _NINJA.match(event.text):
                    progress.say(job, f"object {counted['done']} of {counted['all']}", "dim")

        try:
            result = run(on_event=on_event)
        except BuildFailed as failed:
            if _STEP not in failed.step:
                raise
            problem = explained(wanted, log.read_text(encoding="utf-8").splitlines(), failed, log)
            raise UserError(problem, code=1) from failed
    return any(_STEP in step.name and not step.cached for step in result.steps)


_ERRORS = (
    re.compile(r"(?P<file>[^\s:()]+\.\w+):(?P<line>\d+)(?::\d+)?: (?:fatal )?error: (?P<text>.+)"),
    re.compile(r"(?P<file>[^\s()]+\.\w+)\((?P<line>\d+)\): (?:catastrophic |fatal )?error(?: #[\w-]+)?: (?P<text>.+)"),
    re.compile(r"(?P<text>(?:nvcc|ptxas|nvlink|cicc|cudafe\+\+) (?:fatal|error)\s*: .+)"),
    re.compile(r"(?P<text>(?:\w+\.)*\w*(?:Error|Exception): .+)"),
    re.compile(r"(?P<text>error: .+)"),
)
_OUT_OF_MEMORY = re.compile(
    r"died due to signal 9|killed signal terminated|cannot allocate memory|out of memory|exit code:? 137\b|^killed$",
    re.IGNORECASE,
)


def explained(wanted: Recipe, lines: Sequence[str], failed: BuildFailed, log: Path) -> Problem:
    """A failed compilation in words: package, file, first error, where the log is."""
    where = f"{wanted.distribution} {wanted.version}"
    if failed.failure.kind is FailureKind.DISK:
        return Problem(where=where, cause=failed.failure.cause, then=f"{failed.failure.then}; the log is {log}")
    texts = [line.strip() for line in (*lines, *failed.error.splitlines())]
    if killed := next((text for text in texts if _OUT_OF_MEMORY.search(text)), None):
        cause = f"a compiler ran out of memory ({killed})"
        then = f"compile fewer at once: --jobs N (finished objects are kept); the log is {log}"
        return Problem(where=where, cause=cause, then=then)
    for pattern in _ERRORS:
        for text in texts:
            if found := pattern.match(text):
                place = found.groupdict()
                at = f"{Path(place['file']).name}:{place['line']}: " if "file" in place else ""
                return Problem(where=where, cause=f"did not compile: {at}{found['text']}", then=f"read {log}")
    return Problem(where=where, cause=f"did not compile: {failed.failure.cause}", then=f"read {log}")


def _fetch(engine: Engine, tag: str) -> tuple[dict[str, Any], bytes]:
    """The builder's record, and the wheel."""
    with engine.container(ContainerSpec(tag, ["true"])) as container:
        done: dict[str, Any] = json.loads(container.get_file("/wheel/record.json"))
        return done, container.get_file(f"/wheel/{done['wheel']}")


# --- judging --------------------------------------------------------------------------------------------------------


def _judge(engine: Engine, tag: str, image: Image, wanted: Recipe, content: bytes, facts: Facts, log: Path) -> Verdict:
    """Symbols and device code of the new wheel beside torch. Raises UserError unless every claim holds."""
    claims = ClaimSet(image=tag, claims=tuple(_claims(image, wanted, content, facts)))
    evidence = trial.run(engine, tag, claims, trial.Trial(tiers=[Tier.STATIC]))
    verdict = judge(claims, evidence, [Tier.STATIC])
    wrong = [one for one in verdict.claims if one.status is not Status.PASS]
    if wrong:
        where = f"{wanted.distribution} {wanted.version}"
        then = f"it is not kept; what did the compiler do? {log}"
        raise UserError(
            [
                Problem(where=where, cause=f"compiled, but {one.claim.id} is {one.status}: {one.reason}", then=then)
                for one in wrong
            ],
            code=1,
        )
    return verdict


def _claims(image: Image, wanted: Recipe, content: bytes, facts: Facts) -> Iterator[Claim]:
    new = Pin(name=wanted.distribution, version=wanted.version, layer="torch")
    beside_torch = replace(image, pins=(*_beside(image), new), prebuilt=())
    for claim in image_claims(ClaimContext(image=beside_torch, facts=facts)).claims:
        if (claim.id, claim.subject) in {*_JUDGED, ("S1", wanted.distribution)}:
            yield claim
    if wanted.archs:
        archs = dict.fromkeys(map(Arch.parse, wanted.archs), "cubin")
        yield code_claim(image, wanted.distribution, [], archs, also=libraries(content))


def _beside(image: Image) -> tuple[Pin, ...]:
    """What is installed beside the new wheel: torch's layer."""
    return tuple(pin for pin in image.pins if pin.layer == image.layers[0])


def libraries(content: bytes) -> tuple[str, ...]:
    """The libraries in a wheel."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        return tuple(sorted(name for name in archive.namelist() if re.search(r"\.so(?:\.\d+)*$", name)))


def _record(
    wanted: Recipe, done: Mapping[str, Any], verdict: Verdict, base: str, jobs: int, seconds: float
) -> dict[str, Any]:
    return {
        "key": wanted.key,
        "recipe": asdict(wanted),
        "compilers": done["compilers"],
        "base_digest": base,
        "objects": done["objects"],
        "shim": done["shim"],
        "jobs": jobs,
        "seconds": round(seconds, 1),
        "verdict": [
            {
                "id": one.claim.id,
                "subject": one.claim.subject,
                "verdict": str(one.status),
                "reason": one.reason,
            }
            for one in verdict.claims
        ],
    }
