"""Turns rendered contexts into a docker-bake.json: many images in one build, shared stages built once. Pure.

Each image's Dockerfile stays whole: plain `docker build` of its context still makes the same image. A stage that
several images have in common (the same instructions over the same files) becomes a target of its own, and BuildKit is
told to take that target's result wherever the stage's name stands: a named context goes before a stage
(https://docs.docker.com/build/bake/contexts/, Dockerfile frontend 1.4 and later).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from images.context.labels import LABELS
from images.engine import PLATFORM, ImageInfo
from images.errors import Problem, UserError
from images.host.hashing import sha256

FILE = "docker-bake.json"
INPUTS = "inputs.json"
"""Beside each context: revision, base and wheels of an image, recorded before it is built."""
_TARGET = "{target}"
"""Stands for the target's name in a cache's address."""
_KEY = 8
"""Hex digits of a shared stage's hash in its target's name."""


class Provenance(StrEnum):
    """BuildKit's own attestation. With one, what is pushed is an index of two manifests and no plain image."""

    OFF = "off"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One image's context, as far as the bake file must know it."""

    name: str
    profile: str | None
    dockerfile: str
    digests: Mapping[str, str]
    """Path in the context -> sha256 of its content."""
    revision: str = ""
    """Of matrix and facts."""
    base: Mapping[str, str] = field(default_factory=dict)
    """`reference`, `origin` and `digest` of what it is built on."""
    platform: str = PLATFORM


@dataclass(frozen=True, kw_only=True)
class BakeOptions:
    """Where buildx puts results and caches. `cache_from` and `cache_to` have its syntax, plus `{target}`."""

    repository: str = ""
    """Where images are pushed; empty: into the engine that buildx works for."""
    cache_from: Sequence[str] = ()
    cache_to: Sequence[str] = ()
    provenance: Provenance = Provenance.OFF


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A stage of one or more Dockerfiles: those with the same key are one."""

    name: str
    """What its Dockerfile calls it; the image's own name for the last one."""
    image: str
    """An image whose context has it."""
    platform: str
    final: bool
    needs: Mapping[str, str]
    """Name of a stage it is built from -> that stage's key."""


@dataclass(kw_only=True)
class Stage:
    """One stage as it is being read."""

    name: str
    lines: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def bake(images: Sequence[Rendered], options: BakeOptions) -> dict[str, Any]:
    """The content of docker-bake.json. Contexts are `NAME/context`, seen from the folder that holds the file.

    Images are tagged `NAME-candidate`: only a trial gives the name. Raises UserError for a cache that every target
    would write to the same place.
    """
    nodes = _nodes(images)
    owners = _owners(nodes)
    emitted = {key: _target_name(key, nodes[key]) for key in nodes if owners[key] == key}
    _require_own_caches(options, len(emitted))
    targets = {name: _target(key, name, nodes, owners, emitted, options) for key, name in emitted.items()}
    return {"group": _groups(images), "target": targets}


def inputs(image: Rendered) -> dict[str, Any]:
    """The inputs of one image: the part of build.json that the builder does not know."""
    wheels = {path.removeprefix("wheels/"): digest for path, digest in image.digests.items() if path.endswith(".whl")}
    return {"image": image.name, "revision": image.revision, "base": dict(image.base), "wheels": wheels}


def adopted(inputs: Mapping[str, Any], info: ImageInfo, missing: Mapping[str, str]) -> dict[str, Any]:
    """build.json of a baked image, from its inputs and the engine's description of it.

    Raises UserError where its labels are not of these inputs: another image, or one of another matrix.
    """
    labels = {key: info.labels.get(f"{LABELS}.{key}", "") for key in ("image", "matrix-revision", "base")}
    wanted = {"image": inputs["image"], "matrix-revision": inputs["revision"], "base": inputs["base"]["reference"]}
    if wrong := [
        f"{key} is {labels[key] or 'not said'}, baked was {wanted[key]}" for key in wanted if labels[key] != wanted[key]
    ]:
        then = "bake it anew: `nox -s bake`, then `docker buildx bake`"
        raise UserError(
            Problem(where=info.id[:19], cause=f"its labels say otherwise: {'; '.join(wrong)}", then=then), code=1
        )
    return {
        "image": inputs["image"],
        "digest": info.id,
        "bytes": info.size,
        "layers": list(info.layers),
        "base": inputs["base"],
        "engine": {"version": "buildx"},
        "wheels": inputs["wheels"],
        "missing": dict(missing),
    }


def _groups(images: Sequence[Rendered]) -> dict[str, Any]:
    by_profile: dict[str, list[str]] = {}
    for image in images:
        by_profile.setdefault(f"profile-{image.profile or 'none'}", []).append(image.name)
    groups = {"default": [image.name for image in images], **by_profile}
    return {name: {"targets": members} for name, members in groups.items()}


def _target(
    key: str,
    name: str,
    nodes: Mapping[str, _Node],
    owners: Mapping[str, str],
    emitted: Mapping[str, str],
    options: BakeOptions,
) -> dict[str, Any]:
    node = nodes[key]
    links = {
        stage: f"target:{emitted[owners[needed]]}"
        for inner in (one for one in nodes if owners[one] == key)
        for stage, needed in nodes[inner].needs.items()
        if owners[needed] != key
    }
    target: dict[str, Any] = {
        "context": f"{node.image}/context",
        "dockerfile": "Dockerfile",
        "platforms": [node.platform],
        "cache-from": [one.replace(_TARGET, name) for one in options.cache_from],
        "cache-to": [one.replace(_TARGET, name) for one in options.cache_to],
    }
    if links:
        target["contexts"] = dict(sorted(links.items()))
    if not node.final:
        return {**target, "target": node.name, "output": ["type=cacheonly"]}
    tag = f"{options.repository}:{name}-candidate" if options.repository else f"{name}-candidate"
    output = "type=registry" if options.repository else "type=docker"
    return {**target, "tags": [tag], "output": [output], "attest": [_attestation(options.provenance)]}


def _attestation(provenance: Provenance) -> str:
    return "type=provenance," + ("disabled=true" if provenance is Provenance.OFF else f"mode={provenance}")


def _target_name(key: str, node: _Node) -> str:
    return node.name if node.final else f"shared-{node.name}-{key[:_KEY]}"


def _require_own_caches(options: BakeOptions, targets: int) -> None:
    same = [one for one in options.cache_to if _TARGET not in one and "type=inline" not in one]
    if same and targets > 1:
        cause = f"{targets} targets would write their cache to one place, each over the other's"
        then = f"put {_TARGET} into it: --cache-to type=registry,ref=REGISTRY/cache:{_TARGET},mode=max"
        raise UserError(Problem(where=f"--cache-to {same[0]}", cause=cause, then=then))


# --- what is shared -------------------------------------------------------------------------------------------------


def _owners(nodes: Mapping[str, _Node]) -> dict[str, str]:
    """Key of each stage -> key of the stage whose target builds it: its own where several targets need it."""
    needed_by: dict[str, set[str]] = {key: set() for key in nodes}
    owners: dict[str, str] = {}
    for key in reversed(list(nodes)):  # what needs a stage comes after it
        wanted = needed_by[key]
        owners[key] = key if len(wanted) != 1 else next(iter(wanted))
        for needed in nodes[key].needs.values():
            needed_by[needed].add(owners[key])
    return owners


def _nodes(images: Sequence[Rendered]) -> dict[str, _Node]:
    """Every distinct stage by its key, each after those it needs."""
    nodes: dict[str, _Node] = {}
    for image in images:
        keys: dict[str, str] = {}
        *stages, last = stages_of(image.dockerfile)
        for stage in stages:
            needs = {name: keys[name] for name in stage.needs}
            keys[stage.name] = _key(stage, needs, image)
            node = _Node(name=stage.name, image=image.name, platform=image.platform, final=False, needs=needs)
            nodes.setdefault(keys[stage.name], node)
        needs = {name: keys[name] for name in last.needs}
        nodes[image.name] = _Node(name=image.name, image=image.name, platform=image.platform, final=True, needs=needs)
    return _reachable(nodes)


def _reachable(nodes: Mapping[str, _Node]) -> dict[str, _Node]:
    """The stages that some image needs. BuildKit does not build others either."""
    wanted = [key for key, node in nodes.items() if node.final]
    seen: set[str] = set()
    while wanted:
        key = wanted.pop()
        if key not in seen:
            seen.add(key)
            wanted += nodes[key].needs.values()
    return {key: node for key, node in nodes.items() if key in seen}


def _key(stage: Stage, needs: Mapping[str, str], image: Rendered) -> str:
    """A hash of all that makes a stage: platform, instructions, the files they read, and the stages it stands on."""
    parts = [image.platform, *stage.lines, *(f"{name}={key}" for name, key in sorted(needs.items()))]
    for path in stage.files:
        under = [one for one in sorted(image.digests) if one == path or one.startswith(f"{path}/")]
        parts += [f"{one}={image.digests[one]}" for one in under]
    return sha256("\n".join(parts).encode())


# --- reading our Dockerfiles ----------------------------------------------------------------------------------------

_FROM = re.compile(r"FROM (?P<base>\S+)(?: AS (?P<name>\S+))?")
_MOUNT = re.compile(r"--mount=(\S+)")
_COPY = re.compile(r"COPY (?P<options>(?:--\S+ )*)(?P<paths>.+)")


def stages_of(dockerfile: str) -> list[Stage]:
    """The stages of a Dockerfile that `render` made, in its order: what each needs, and which files it reads.

    Raises ValueError for a first instruction that is no FROM: it is none of ours.
    """
    stages: list[Stage] = []
    for line in _instructions(dockerfile):
        known = {stage.name for stage in stages}
        if start := _FROM.fullmatch(line):
            stages.append(Stage(name=start["name"] or "", lines=[line]))
            _add(stages[-1].needs, [start["base"]] if start["base"] in known else [])
            continue
        if not stages:
            raise ValueError(f"an instruction before FROM: {line}")
        stages[-1].lines.append(line)
        sources, files = _reads(line)
        _add(stages[-1].needs, [name for name in sources if name in known])
        _add(stages[-1].files, files)
    return stages


def _instructions(dockerfile: str) -> Iterator[str]:
    """Each instruction in one line, without comments."""
    kept = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\s*\\\n\s*", " ", "\n".join(kept)).splitlines():
        yield line.strip()


def _reads(line: str) -> tuple[list[str], list[str]]:
    """Stages and files that an instruction reads."""
    stages, files = [], []
    for text in _MOUNT.findall(line) if line.startswith("RUN ") else ():
        mount = dict(word.partition("=")[::2] for word in text.split(","))
        if "from" in mount:
            stages.append(mount["from"])
        elif mount.get("type", "bind") == "bind":
            files.append(mount.get("source", "."))
    if copy := _COPY.fullmatch(line):
        source = re.search(r"--from=(\S+)", copy["options"])
        if source:
            stages.append(source[1])
        else:
            files += copy["paths"].split()[:-1]
    return stages, files


def _add(known: list[str], more: Sequence[str]) -> None:
    known += [one for one in more if one not in known]
