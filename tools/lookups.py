"""Traces what programs of an image look for and do not find: what exists there in another image is found first.

`python -m tools.lookups NAME...` runs images of the engine under strace (this machine's: no image has it) and adds to
tests/validate/checks/lookups.json: pattern of a path -> the programs that asked for it. A test holds `origin`'s
excuses to it: no file that `origin` lets be for its place stands where a program looks. A new stack is traced once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import typer

from images.engine import ContainerSpec, private_engine
from images.host import apt
from tools import run
from validate.binaries.loader import Files, Process, SearchPath

TABLE = Path(__file__).parents[1] / "tests" / "validate" / "checks" / "lookups.json"
_IN = "/lookups"
_LOADER = "/lib64/ld-linux-x86-64.so.2"
_SECONDS = 1800
_MANY, _DEPTH = 6, 3
_KERNELS = ("/proc/", "/sys/", "/dev/", "/tmp/", "/selinux", _IN)
_ASKED = re.compile(r'^\d* *(?:\w+\()(?:AT_FDCWD, )?"(?P<path>/[^"]*)".* = -1 ENOENT')
_SAME = (
    (re.compile(r"^/(lib|lib64|bin|sbin)/"), r"/usr/\1/"),
    (re.compile(r"/python3(\.\d+)?/"), "/python3*/"),
    (re.compile(r"/venvs/[^/]+"), "/venvs/*"),
    (re.compile(r"/cuda-[\d.]+"), "/cuda-*"),
    (re.compile(r"/additions/[^/]+"), "/additions/*"),
    (re.compile(r"/torch_extensions/[^/]+"), "/torch_extensions/*"),
    (re.compile(r"cpython-3\d+"), "cpython-3*"),
    (re.compile(r"[^/]*\d{5,}[^/]*"), "*"),
)
"""What differs from image to image or run to run."""

PROGRAMS: Mapping[str, str] = {
    "bash": "bash -lic true",
    "sh": "sh -c 'ls >/dev/null; awk 1 /etc/hostname'",
    "python": "python3 -c 'import ssl, sqlite3, ctypes.util, zoneinfo; ctypes.util.find_library(\"z\")'",
    "names": "python3 -c 'import socket; socket.getaddrinfo(\"nowhere.invalid\", 80)'",
    "torch": "python3 -c 'import torch; torch.ones(2, 2) @ torch.ones(2, 2); torch.cuda.is_available()'",
    "packages": "python3 -c 'import transformers as t, datasets, peft, bitsandbytes; t.TrainingArguments'",
    "torch.compile": "python3 -c 'import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(9))'",
    "gcc": "gcc -x c /lookups/empty.c -o /tmp/a -lm",
    "g++": "g++ -x c++ /lookups/empty.c -shared -fPIC -o /tmp/a.so",
    "toolkit": "sh -c 'ptxas --version; nvcc --version'",
    "git": "sh -c 'git init -q /tmp/g; git -C /tmp/g status; git ls-remote https://127.0.0.1:1/x'",
    "ssh": "ssh -o BatchMode=yes -p 1 127.0.0.1 true",
    "curl": "curl -s https://127.0.0.1:1/",
    "pip": "sh -c 'pip list; pip install --no-index nothing'",
    "accelerate": "accelerate launch --cpu /lookups/empty.py",
    "torchrun": "torchrun --standalone --nproc-per-node 1 /lookups/empty.py",
    "apt": "sh -c 'apt-config dump; apt-get check; dpkg -l; perl -e 1'",
    "less": "sh -c 'less --version; ps'",
}


def asked_for(trace: str) -> set[str]:
    """Paths of a trace that were not there, of the image's own file system, normalised as programs write them."""
    found = {os.path.normpath(match["path"]) for match in map(_ASKED.match, trace.splitlines()) if match}
    return {path for path in found if not f"{path}/".startswith(_KERNELS)}


def general(path: str) -> str:
    """A path as every image and run has it."""
    for pattern, name in _SAME:
        path = pattern.sub(name, path)
    return path


def compact(asked: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Pattern -> programs. A folder below which many paths were asked for is one pattern, if it is deep enough."""
    many = Counter(ancestor for path in asked for ancestor in _deep(path))
    found: dict[str, set[str]] = {}
    for path, programs in asked.items():
        folder = next((one for one in _deep(path) if many[one] >= _MANY), None)
        found.setdefault(f"{folder}/*" if folder else path, set()).update(programs)
    return {pattern: sorted(programs) for pattern, programs in sorted(found.items())}


def _deep(path: str) -> Iterator[str]:
    """The folders above it, the highest first, from /usr/lib/X on."""
    parts = path.split("/")
    yield from ("/".join(parts[:end]) for end in range(_DEPTH + 1, len(parts)))


def _script() -> Iterator[str]:
    trace = f"{_IN}/loader --library-path {_IN} {_IN}/strace -f -qq -s 4096 -e trace=%file -e signal=none -o /tmp/trace"
    for name, command in PROGRAMS.items():
        yield f"echo '== {name}'; cd /workspace; {trace} {command} >/dev/null 2>&1 </dev/null; grep ENOENT /tmp/trace"


def _files() -> dict[str, bytes | Path]:
    """Debian's strace with its libraries and loader, and what it is to run."""
    if shutil.which("strace") is None:
        apt.install("strace")
    program = os.path.realpath(shutil.which("strace") or "strace")
    process = Process(SearchPath.of({}, "/"), Files())
    process.load(program)
    libraries = {name: Path(path) for name, path in process.held.items() if path != program}
    empty: dict[str, bytes | Path] = {"empty.c": b"int main() { return 0; }\n", "empty.py": b""}
    return {
        **libraries,
        **empty,
        "strace": Path(program),
        "loader": Path(_LOADER),
        "run": "\n".join(_script()).encode(),
    }


def main(names: list[str]) -> None:
    """Trace these images of the engine."""
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"images": [], "asked": {}}
    with private_engine.open_engine(None, on_progress=typer.echo) as engine:
        for name in names:
            spec = ContainerSpec(
                name, ["bash", f"{_IN}/run"], volumes=[_IN], tmpfs={"/tmp": "exec", "/home/trainer": "exec,mode=1777"}
            )
            with engine.container(spec) as container:
                container.put(_files(), _IN)
                container.start()
                lines = [text for stream, text in container.lines(_SECONDS) if stream == "stdout"]
            for part in "\n".join(lines).split("== ")[1:]:
                program, _, trace = part.partition("\n")
                for path in map(general, asked_for(trace)):
                    table["asked"][path] = sorted({*table["asked"].get(path, ()), program})
            table["images"] = sorted({*table["images"], name})
    asked = compact(table["asked"])
    rows = ",\n".join(f"{json.dumps(pattern)}: {json.dumps(programs)}" for pattern, programs in asked.items())
    TABLE.write_text(f'{{"images": {json.dumps(table["images"])},\n"asked": {{\n{rows}\n}}}}\n', encoding="utf-8")
    typer.echo(f"wrote {TABLE.name}: {len(asked)} patterns")


if __name__ == "__main__":
    run(main)
