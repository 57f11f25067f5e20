"""Checks of an audit from what the survey and the engine say, and from judged claims. Pure."""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from images.audit.model import Check, Outcome, Severity, Source
from images.engine import ImageInfo
from images.planning import expectations
from validate import hints
from validate.claims import Claim, Tier
from validate.environment.installed import canonical
from validate.judge import Verdict
from validate.judging import Status, listed

_SHOWN = 6
_WARNINGS = frozenset(
    ("S2 strays", "S3 rivals", "S7 start", "S8 leftovers", "C3 c-extension", "C7 threads", "C9 avx512")
)
"""Claims whose fault is no more than a warning, by `ID SUBJECT`."""
_ALLOWED = (
    *("PIP_*", "UV_*", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("XFORMERS_IGNORE_FLASH_VERSION_CHECK", "FLASH_ATTENTION_FORCE_BUILD"),
)
"""Variables that others set for good reasons and that change no result: how pip installs, where caches lie."""
_GRAVE = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "PYTHONOPTIMIZE",
    "PYTHONHOME",
    "TRITON_INTERPRET",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_OVERRIDE_*",
    "BNB_CUDA_VERSION",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_JIT",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_FORCE_PTX_JIT",
    "TORCHDYNAMO_DISABLE",
)
"""Variables with which results come from another path, or GPUs are hidden."""
_FIXES = {
    "S2 files": "`pip install --force-reinstall --no-deps NAME==VERSION` of the packages named",
    "S2 strays": "find the build step that wrote the file; remove it, or make it part of a package",
    "S3 libraries": "install the missing library, or the package's build for this CUDA and torch",
    "S3 rivals": "take that folder out of LD_LIBRARY_PATH and /etc/ld.so.conf.d: torch's wheels bring their own",
    "S4 symbols": "install the package's build for this very torch: compiled extensions fit one torch release",
    "S7 start": "remove the file, or find out which step of the build writes it",
    "S8 leftovers": "remove them in the step that makes them (`rm -rf /var/lib/apt/lists/*`, `--no-cache-dir`)",
    "S8 secrets": "revoke the credential, and give it to the build as a secret mount (`RUN --mount=type=secret`)",
}


def from_verdict(environment: str, verdict: Verdict) -> Iterator[Check]:
    """Judged claims of one environment, in the words of an audit."""
    for one in verdict.claims:
        key = f"{one.claim.id} {one.claim.subject}"
        if one.status is Status.NOT_APPLICABLE:
            continue
        outcome = {Status.PASS: Outcome.NONE, Status.FAIL: Outcome.FAULT}.get(one.status, Outcome.NOT_MEASURED)
        yield Check(
            id=one.claim.id,
            subject=one.claim.subject,
            environment=environment,
            outcome=outcome,
            severity=Severity.WARNING if key in _WARNINGS else Severity.ERROR,
            text=one.reason,
            source=_source(one.claim),
            hints=one.hints if outcome is Outcome.FAULT else (),
            fix=_FIXES.get(key, ""),
            seconds=one.seconds,
        )


def _source(claim: Claim) -> Source:
    return Source.FILES if claim.tier is Tier.STATIC else Source.RUN


def of_image(image: ImageInfo, survey: Mapping[str, Any], history: Sequence[Mapping[str, str]]) -> Iterator[Check]:
    """Checks of the whole image. `history`: credentials in variables, labels and build steps, by kind and place."""
    yield _interpreters(survey["interpreters"])
    yield _driver_files(survey["driver_files"])
    yield _preload(survey["preload"])
    yield from _variables(image.env)
    yield _check(
        _Rule(id="S8", subject="history", fix=_FIXES["S8 secrets"], source=Source.ENGINE),
        [f"{one['where']} holds {one['kind']}" for one in history],
        "no credential in variables, labels and build steps",
    )
    yield from _settings(image)


def of_environment(environment: Mapping[str, Any], toolkits: Sequence[Mapping[str, str]]) -> Iterator[Check]:
    """Checks of one environment from its metadata: requirements, duplicates, and the toolkit beside torch."""
    prefix = str(environment["prefix"])
    fix = "`pip check` lists the same; install versions that fit together"
    yield _check(
        _Rule(id="A3", subject="requirements", fix=fix, severity=Severity.WARNING),
        unmet(environment),
        f"the requirements of {len(environment['distributions'])} distributions are met",
        prefix,
    )
    fix = "uninstall both, then install one: Python takes the first folder, pip may change the other"
    yield _check(
        _Rule(id="A4", subject="duplicates", fix=fix),
        _duplicates(environment),
        "each distribution is there once",
        prefix,
    )
    if cuda := str(environment["torch"].get("cuda", "")):
        yield _toolkit(prefix, cuda, toolkits)


def unmet(environment: Mapping[str, Any]) -> Iterator[str]:
    """Requirements that nothing installed meets, as `pip check` reports them."""
    found = {canonical(str(one["name"])): str(one["version"]) for one in reversed(environment["distributions"])}
    markers = {
        "python_version": str(environment["version"]),
        "platform_system": "Linux",
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    # The files tell X.Y alone: a marker counts where the first and the last release of X.Y both meet it.
    releases = [
        {**markers, "python_full_version": full, "implementation_version": full}
        for full in (f"{environment['version']}.0", f"{environment['version']}.999")
    ]
    for one in environment["distributions"]:
        for line in one["requires"]:
            if problem := _unmet(str(line), found, releases):
                yield f"{one['name']} {one['version']} {problem}"


def _unmet(line: str, found: Mapping[str, str], releases: Sequence[Mapping[str, str]]) -> str:
    """`releases`: what markers are evaluated with."""
    try:
        wanted = Requirement(line)
        if wanted.marker and not all(wanted.marker.evaluate(dict(one)) for one in releases):
            return ""
        version = found.get(canonical(wanted.name))
        if version is None:
            return f"requires {wanted.name}, which is not installed"
        fits = wanted.specifier.contains(Version(version), prereleases=True)
    except (InvalidRequirement, InvalidVersion, UndefinedEnvironmentName):
        return ""
    return "" if fits else f"requires {wanted.name}{wanted.specifier}, {version} is installed"


def _duplicates(environment: Mapping[str, Any]) -> Iterator[str]:
    places: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for one in environment["distributions"]:
        places[str(one["name"])].append((str(one["version"]), str(one["location"])))
    for name, all_ in sorted(places.items()):
        if len(all_) > 1 and not _is_debians_second(all_):
            yield f"{name} is there {len(all_)} times: {listed([f'{version} in {place}' for version, place in all_])}"


def _is_debians_second(places: Sequence[tuple[str, str]]) -> bool:
    """pip installs over what Debian's packages brought, into a folder before theirs: that is how it is meant."""
    return {place for _, place in places} == {places[0][1], "/usr/lib/python3/dist-packages"} and len(places) == 2


def _toolkit(prefix: str, cuda: str, toolkits: Sequence[Mapping[str, str]]) -> Check:
    known = [one for one in toolkits if one["version"]]
    wrong = [
        f"{one['home']} is CUDA {one['version']}, torch is built for CUDA {cuda}: extensions can't be compiled with it"
        for one in known
        if one["version"].partition(".")[0] != cuda.partition(".")[0]
    ]
    good = f"the toolkit has torch's CUDA major: {listed([one['version'] for one in known])}" if known else "no toolkit"
    fix = f"install a toolkit of CUDA {cuda.partition('.')[0]}, or a torch for the toolkit's CUDA"
    return _check(_Rule(id="S6", subject="toolkit", fix=fix, severity=Severity.WARNING), wrong, good, prefix)


def _interpreters(found: Sequence[Mapping[str, Any]]) -> Check:
    wrong = []
    for one in {one["real"]: one for one in found}.values():
        if not one["elf"]:
            wrong.append(f"{one['path']} is no machine code: something else runs before Python, or in its place")
        elif one["as_packaged"] is False:
            wrong.append(f"{one['real']} is not the file that its Debian package brought")
    fix = "find the build step that put it there; start Python by its own path"
    good = f"{listed(sorted({str(one['real']) for one in found})) or 'no python'} on PATH"
    return _check(_Rule(id="A1", subject="interpreters", fix=fix), wrong, good)


def _driver_files(found: Sequence[str]) -> Check:
    fix = "remove it, and its package: the container runtime mounts the host's own"
    faults = [f"the image brings the host driver's {path} itself" for path in found]
    return _check(
        _Rule(id="A2", subject="driver", fix=fix), faults, "no library or program of the host's driver is in the image"
    )


def _preload(found: Sequence[str]) -> Check:
    faults = [f"/etc/ld.so.preload loads {path} into every process" for path in found]
    rule = _Rule(id="S7", subject="preload", fix="empty /etc/ld.so.preload")
    return _check(rule, faults, "nothing is loaded into every process")


def _variables(environ: Mapping[str, str]) -> Iterator[Check]:
    denied = {
        name: why
        for name in sorted(environ)
        for pattern, why in expectations.DENIED_VARIABLES.items()
        if fnmatch.fnmatchcase(name, pattern) and environ[name] and not _is_any(name, _ALLOWED)
    }
    grave = {name: why for name, why in denied.items() if _is_any(name, _GRAVE)}
    for subject, severity, names in (
        ("variables", Severity.ERROR, grave),
        ("settings", Severity.WARNING, {name: why for name, why in denied.items() if name not in grave}),
    ):
        faults = [f"{name}={environ[name][:80]} is set: {why}" for name, why in names.items()]
        good = (
            "no variable sends results over another path" if subject == "variables" else "no variable fits one machine"
        )
        fix = "take the variable out of the image; set it where it is needed"
        yield _check(_Rule(id="S7", subject=subject, fix=fix, severity=severity, source=Source.ENGINE), faults, good)


def _is_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _settings(image: ImageInfo) -> Iterator[Check]:
    env, root = image.env, image.user.partition(":")[0] in ("", "0", "root")
    fix = "add a user, and `USER` with its number"
    rule = _Rule(id="S8", subject="user", fix=fix, severity=Severity.NOTE, source=Source.ENGINE)
    yield _check(rule, ["it runs as root"] if root else [], f"it runs as {image.user}")
    capabilities = env.get("NVIDIA_DRIVER_CAPABILITIES")
    faults = []
    if capabilities and not {"compute", "all"} & set(capabilities.split(",")):
        faults.append(f"NVIDIA_DRIVER_CAPABILITIES={capabilities} leaves CUDA out")
    if env.get("NVIDIA_VISIBLE_DEVICES") in ("void", "none"):
        faults.append(f"NVIDIA_VISIBLE_DEVICES={env['NVIDIA_VISIBLE_DEVICES']} hides every GPU")
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "true"):
        faults.append("NVIDIA_DISABLE_REQUIRE switches the check of the host's driver off")
    fix = "set NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    rule = _Rule(id="S8", subject="runtime", fix=fix, source=Source.ENGINE)
    yield _check(rule, faults, "nothing keeps the container runtime from attaching GPUs")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    id: str
    subject: str
    fix: str
    severity: Severity = Severity.ERROR
    source: Source = Source.FILES


def _check(rule: _Rule, faults: Iterable[str], good: str, environment: str = "") -> Check:
    found = list(faults)
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return Check(
        id=rule.id,
        subject=rule.subject,
        environment=environment,
        outcome=Outcome.FAULT if found else Outcome.NONE,
        severity=rule.severity,
        text="; ".join(found[:_SHOWN]) + more if found else good,
        source=rule.source,
        hints=hints.find(found) if found else (),
        fix=rule.fix,
    )
