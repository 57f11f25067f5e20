"""Checks of an audit from what the survey and the engine say, and from judged claims. Pure."""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from images.audit import expected
from images.audit.model import Check, LibraryCode, Outcome, Runs, Severity, Source
from images.config import yamlfile
from images.config.facts import Facts, nearest
from images.config.names import Minor
from images.engine import ImageInfo
from images.planning import chooser, expectations, silent
from images.planning.chooser import Machine
from validate import hints
from validate.binaries import fatbin
from validate.checks import settings
from validate.compute_capability import target_runs_on
from validate.environment.installed import canonical
from validate.judge import Verdict
from validate.judging import Status, joined, listed, matches

_SHOWN = 6
NOT_THERE = ", which is not installed"
_RULES = yamlfile.table("audit.yaml")
ARCHS = ("50", "60", "70", "75", "80", "86", "89", "90", "100", "120")
"""What the tables show: GPUs of servers and workstations, by compute capability."""
_LEAST_BYTES = 64 << 10
"""cuFFT's libraries hold a kernel of 320 bytes that nobody calls, and keep the others elsewhere."""
_FOR_CUDA = re.compile(r"_cuda(\d\d)(\d)\.so")


def from_verdict(environment: str, verdict: Verdict) -> Iterator[Check]:
    """Judged claims of one environment, in the words of an audit."""
    for one in verdict.claims:
        row = _RULES["checks"].get(one.claim.key, {})
        if one.status is Status.NOT_APPLICABLE:
            continue
        outcome = {Status.PASS: Outcome.NONE, Status.FAIL: Outcome.FAULT, Status.KNOWN: Outcome.FAULT}.get(
            one.status, Outcome.NOT_MEASURED
        )
        yield Check(
            check=one.claim.check,
            subject=one.claim.subject,
            environment=environment,
            outcome=outcome,
            severity=Severity(row.get("severity", "error")),
            text=one.reason,
            source=Source.FILES if settings(one.claim.probe).reads_files_only else Source.RUN,
            hints=one.hints if outcome is Outcome.FAULT else (),
            fix=row.get("fix", ""),
            seconds=one.seconds,
        )


def of_image(image: ImageInfo, survey: Mapping[str, Any], history: Sequence[Mapping[str, str]]) -> Iterator[Check]:
    """Checks of the whole image. `history`: credentials in variables, labels and build steps, by kind and place."""
    pythons = listed(sorted({str(one["real"]) for one in survey["interpreters"]})) or "no python"
    wrong = []
    for one in {one["real"]: one for one in survey["interpreters"]}.values():
        if not one["elf"]:
            wrong.append(f"{one['path']} is no machine code: something else runs before Python, or in its place")
        elif one["as_packaged"] is False:
            wrong.append(f"{one['real']} is not the file that its Debian package brought")
    yield _check("audit/interpreters", wrong, pythons=pythons)
    yield _check(
        "audit/driver", [f"the image brings the host driver's {path} itself" for path in survey["driver_files"]]
    )
    preload = [f"/etc/ld.so.preload loads {path} into every process" for path in survey["preload"]]
    yield _check("environment/preload", preload)
    # Variables that no image should set: the grave ones, and the others.
    reasons = {
        name: why
        for name in sorted(image.env)
        for pattern, why in expectations.DENIED_VARIABLES.items()
        if fnmatch.fnmatchcase(name, pattern) and image.env[name] and not matches(name, _RULES["allowed_variables"])
    }
    told = {name: f"{name}={image.env[name][:80]} is set: {why}" for name, why in reasons.items()}
    grave = [text for name, text in told.items() if matches(name, _RULES["grave_variables"])]
    yield _check("environment/variables", grave)
    yield _check("environment/settings", [text for text in told.values() if text not in grave])
    yield _check("image/history", [f"{one['where']} holds {one['kind']}" for one in history])
    is_root = image.user.partition(":")[0] in ("", "0", "root")
    yield _check("image/user", ["it runs as root"] if is_root else [], user=image.user)
    env, against = image.env, []
    capabilities = env.get("NVIDIA_DRIVER_CAPABILITIES")
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        against.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities} leaves CUDA out")
    if env.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        against.append(f"NVIDIA_VISIBLE_DEVICES={env['NVIDIA_VISIBLE_DEVICES']} hides every GPU")
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        against.append("NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off")
    yield _check("image/runtime", against)


def of_environment(environment: Mapping[str, Any], toolkits: Sequence[Mapping[str, str]]) -> Iterator[Check]:
    """Checks of one environment from its metadata: requirements, duplicates, and the toolkit beside torch."""
    prefix, count = str(environment["prefix"]), str(len(environment["distributions"]))
    first = sorted(unmet(environment), key=lambda told: told.endswith(NOT_THERE))  # another release tells more
    yield _check("audit/requirements", first, environment=prefix, count=count)
    places: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for one in environment["distributions"]:
        places[str(one["name"])].append((str(one["version"]), str(one["location"])))
    twice = []
    for name, found in sorted(places.items()):
        # pip installs over what Debian's packages brought, into a folder before theirs: that is how it is meant.
        debians = len(found) == 2 and {place for _, place in found} == {found[0][1], "/usr/lib/python3/dist-packages"}
        if len(found) > 1 and not debians:
            copies = listed([f"{version} in {place}" for version, place in found])
            twice.append(f"{name} is there {len(found)} times: {copies}")
    yield _check("audit/duplicates", twice, environment=prefix)
    numpy = next((str(one["version"]) for one in environment["distributions"] if one["name"] == "numpy"), "0")
    old = environment.get("numpy_1", ()) if numpy.partition(".")[0] not in ("0", "1") else ()
    yield _check(
        "audit/numpy", [f"{path} is compiled for NumPy 1, {numpy} is installed" for path in old], environment=prefix
    )
    cuda = str(environment["torch"].get("cuda", ""))
    if not cuda:
        return
    major, known = cuda.partition(".")[0], [one for one in toolkits if one["version"]]
    others = [
        f"{one['home']} is CUDA {one['version']}, torch is built for CUDA {cuda}: extensions can't be compiled with it"
        for one in known
        if one["version"].partition(".")[0] != major
    ]
    versions = listed([one["version"] for one in known])
    told = f"the toolkit has torch's CUDA major: {versions}" if known else "no toolkit"
    yield _check("toolkit/cuda", others, environment=prefix, major=major, toolkits=told)


def contradiction(told: str) -> Check:
    """What asks for versions that exclude each other, in uv's words."""
    return _check("audit/contradiction", [told])


def of_versions(environment: Mapping[str, Any], facts: Facts) -> Iterator[Check]:
    """What its versions are known to compute wrong without an error, and which of them fail together."""
    versions = {str(one["name"]): str(one["version"]).partition("+")[0] for one in environment["distributions"]}
    cudnn = next((version for name, version in versions.items() if name.startswith("nvidia-cudnn-cu")), "")
    known = silent.known(versions | ({"cudnn": cudnn} if cudnn else {})).values()
    for key, ordinary in (("audit/silent-faults", True), ("audit/rare-silent-faults", False)):
        found = [str(row) for row in known if row.is_ordinary(versions.get("torch", "0")) is ordinary]
        yield _check(key, found, environment=str(environment["prefix"]))
    conflicts = [conflict.told(versions) for conflict in facts.conflicts if conflict.explains(versions)]
    yield _check("audit/conflicts", conflicts, environment=str(environment["prefix"]))


def of_machine(
    environment: Mapping[str, Any], code: Sequence[LibraryCode], facts: Facts, machine: Machine
) -> Iterator[Check]:
    """Whether an environment runs on a machine: its driver, each package's code, and with a torch for CUDA its own and
    the compilers'."""
    image, _ = expected.as_image(environment, code, facts)
    if image:
        against: Sequence[str] = chooser.answer(chooser.summary(image, facts), machine, chooser.Options()).against
    else:
        against = list(chooser.wrong_for_gpu(machine))
    found = [f"torch {text}" if text.startswith("has no code") else text for text in against]
    names = [f"{arch.major}{arch.minor}" for arch in machine.archs]
    for one in runs(code, str(image.wheel_cuda) if image else "", names):
        if lacking := [f"sm_{name}" for name in names if one.on[name] == "no" and one.package != "torch"]:
            found.append(f"{one.package} has no code for {', '.join(lacking)}")
    yield _check("audit/machine", found, environment=str(environment["prefix"]), machine=str(machine))


def _check(key: str, faults: Iterable[str], *, environment: str = "", **facts: str) -> Check:
    """A check of audit.yaml that found these faults. `facts`: what its texts say of the image."""
    row, found = _RULES["checks"][key], list(faults)
    name, _, subject = key.partition("/")
    return Check(
        check=name,
        subject=subject,
        environment=environment,
        outcome=Outcome.FAULT if found else Outcome.NONE,
        severity=Severity(row.get("severity", "error")),
        text=joined(found, limit=_SHOWN) if found else row["good"].format(**facts),
        source=Source(row.get("source", "files")),
        hints=hints.find(found) if found else (),
        fix=row["fix"].format(**facts),
    )


def unmet(environment: Mapping[str, Any]) -> Iterator[str]:
    """Requirements that nothing installed meets, as `pip check` reports them. `partial`: what is not there may come."""
    found = {canonical(str(one["name"])): str(one["version"]) for one in reversed(environment["distributions"])}
    # This process is CPython on Linux for x86-64, as what was read. The files tell X.Y alone: a marker counts where the
    # first and the last release of X.Y both meet it.
    version = str(environment["version"])
    releases = [
        {"python_version": version, "python_full_version": full, "implementation_version": full, "extra": ""}
        for full in (f"{version}.0", f"{version}.999")
    ]
    for one in environment["distributions"]:
        for line in one["requires"]:
            try:
                wanted = Requirement(str(line))
                if wanted.marker and not all(wanted.marker.evaluate(release) for release in releases):
                    continue
                there = found.get(canonical(wanted.name))
                if there is None and environment.get("partial"):
                    continue
                if there is None:
                    yield f"{one['name']} {one['version']} requires {wanted.name}{NOT_THERE}"
                elif not wanted.specifier.contains(Version(there), prereleases=True):
                    needs = f"{wanted.name}{wanted.specifier}"
                    yield f"{one['name']} {one['version']} requires {needs}, {there} is installed"
            except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
                continue


def library_code(survey: Mapping[str, Any]) -> tuple[LibraryCode, ...]:
    """Each library with device code, and the distribution whose folder it lies in."""
    found = []
    for row in survey["device_code"]:
        path = str(row["path"])
        # The name to show: of the first folder below site-packages, or of an nvidia- package of two; or of a toolkit.
        parts = path.partition("-packages/")[2].split("/")
        owner = "-".join(parts[: 2 if parts[0] == "nvidia" and len(parts) > 2 else 1]).partition(".")[0]
        if "-packages/" not in path:
            homes = (one for one in survey["toolkits"] if path.startswith(f"{one['home']}/"))
            owner = next((f"toolkit {one['version']}".strip() for one in homes), "")
        nvidia, error = fatbin.is_nvidias(owner, path), str(row.get("error", ""))
        found.append(LibraryCode(path=path, owner=owner, nvidia=nvidia, archs=row.get("archs", {}), error=error))
    return tuple(found)


def runs(code: Sequence[LibraryCode], cuda: str, archs: Sequence[str] = ARCHS) -> tuple[Runs, ...]:
    """How each package runs on each GPU architecture beside a torch of this CUDA, by the best served of its libraries.

    Left out: NVIDIA's libraries inside other packages, and alternatives for another CUDA, as bitsandbytes has them.
    """
    grouped: defaultdict[str, list[LibraryCode]] = defaultdict(list)
    for one in code:
        aside = one.nvidia and not one.owner.startswith(("nvidia", "toolkit"))
        if sum(one.archs.values()) >= _LEAST_BYTES and not aside:
            grouped[one.owner or one.path].append(one)
    found = []
    for package, every in sorted(grouped.items()):
        # Without alternatives for other CUDA versions: of each row of them one stays, by bitsandbytes' rule.
        numbers = ((one.path, _FOR_CUDA.search(one.path)) for one in every)
        alternatives = {path: Minor(int(found[1]), int(found[2])) for path, found in numbers if found}
        known = alternatives and re.fullmatch(r"\d+\.\d+", cuda)
        loaded = nearest(alternatives.values(), Minor.parse(cuda)) if known else None
        own = [one for one in every if not known or alternatives.get(one.path, loaded) == loaded]
        on = {}
        for arch in archs:
            gpu = divmod(int(arch), 10)
            fitting = [target for one in own for target in one.archs if target_runs_on(target, gpu)]
            has_code = any(target.startswith("sm_") for target in fitting)
            on[arch] = "machine code" if has_code else "PTX" if fitting else "no"
        found.append(Runs(package=package, libraries=len(own), on=on))
    return tuple(found)


def drivers(environments: Sequence[Mapping[str, Any]], facts: Facts) -> tuple[str, ...]:
    """`CUDA 12.8: driver 525.60.13 or newer (570.26 for PTX)` of each CUDA that a torch or a CUDA runtime is of."""
    found = {str(one["torch"].get("cuda", "")) for one in environments}
    for one in (row for environment in environments for row in environment["distributions"]):
        if str(one["name"]).startswith("nvidia-cuda-runtime"):
            found.add(".".join(str(one["version"]).split(".")[:2]))
    least = {cuda: facts.minimum_drivers.get(cuda.partition(".")[0]) for cuda in sorted(found - {""})}
    exact = {cuda: f" ({row.driver} for PTX)" for cuda, row in facts.cuda.items()}
    return tuple(
        f"CUDA {cuda}: driver {row.driver if row else 'not known'} or newer{exact.get(cuda, '')}"
        for cuda, row in least.items()
    )
