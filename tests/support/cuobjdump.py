"""NVIDIA's own reading of device code beside ours: `python -m tests.support.cuobjdump IMAGE [--cuobjdump FILE]`.

The program is in the wheel nvidia-cuda-cuobjdump. Every library of an image's packages is looked at, or below a folder
into which they were unpacked, of any platform: cuobjdump reads files. Exits with 1 where the two say otherwise.
"""

import argparse
import mmap
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from images.engine import Engine, connect
from images.engine.client import private_socket
from validate.binaries import fatbin

Code = Counter[str]
"""`sm_90`, or `compute_90` of PTX -> how many entries."""
_LISTED = re.compile(r"^(?:ELF|PTX) file +\d+: \S*?\.((?:sm|compute)_\d+[af]?)\.(cubin|ptx)$", re.MULTILINE)
_LIBRARY = re.compile(r"\.so(\.\d+)*$")
_NAMED = ("equal", "no device code", "cuobjdump can't read it")
_NOTHING = "does not contain device code"
_WITHOUT_FAMILY = re.compile(r"(\d)f$")


def layer_folders(engine: Engine, ref: str) -> tuple[Path, ...]:
    """Where the layers of an image lie on this machine, bottom first; nothing where they can't be read here."""
    found = engine.sdk.inspect_image(ref)
    data = (found.get("GraphDriver") or {}).get("Data") or {}
    if not engine.facts.local or found["GraphDriver"]["Name"] != "overlay2" or "UpperDir" not in data:
        return ()
    lower = [folder for folder in data.get("LowerDir", "").split(":") if folder]
    places = tuple(Path(folder) for folder in (*reversed(lower), data["UpperDir"]))
    return places if all(os.access(place, os.R_OK) for place in places) else ()


def ours(library: Path) -> Code:
    """What validate/binaries/fatbin.py finds. Raises FatbinError."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = (entry for region in fatbin.regions(data) for entry in region.entries)
        return Counter(f"{'compute' if one.ptx else 'sm'}_{one.arch}{one.variant}" for one in found)


def listed(text: str) -> Code:
    """What `cuobjdump --list-elf --list-ptx` has printed. PTX bears the sm_ of its target there, too."""
    return Counter(name.replace("sm_", "compute_") if kind == "ptx" else name for name, kind in _LISTED.findall(text))


def compared(own: Code, nvidias: Code) -> str:
    """`equal`, `equal but for f` (cuobjdump drops the letter of family-specific code), or what differs."""
    if own == nvidias:
        return "equal"
    short: Code = Counter()
    for name, count in own.items():
        short[_WITHOUT_FAMILY.sub(r"\1", name)] += count
    return "equal but for f" if short == nvidias else f"ours {dict(own - nvidias)}, cuobjdump's {dict(nvidias - own)}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold our reader of device code against cuobjdump.")
    parser.add_argument("image", help="an image of the private engine, or a folder")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    options = parser.parse_args()
    counted: Counter[str] = Counter()
    for name, library in _libraries(options.image):
        counted["libraries"] += 1
        verdict = _verdict(library, options.cuobjdump)
        counted[verdict.partition(":")[0] if verdict.startswith(_NAMED) else "different"] += 1
        if verdict != "no device code":
            sys.stdout.write(f"{name}: {verdict}\n")
    sys.stdout.write(f"{dict(counted)}\n")
    return 1 if counted["different"] else 0


def _verdict(library: Path, program: str) -> str:
    try:
        own = ours(library)
    except fatbin.FatbinError as error:
        return f"ours can't read it: {error}"
    asked = [program, "--list-elf", "--list-ptx", str(library)]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    nvidias = listed(done.stdout)
    if not own and not nvidias and (done.returncode == 0 or _NOTHING in done.stdout + done.stderr):
        return "no device code"
    if done.returncode != 0:
        return f"cuobjdump can't read it: {(done.stderr or done.stdout).strip()[-200:]}"
    return compared(own, nvidias)


def _libraries(image: str) -> Iterator[tuple[str, Path]]:
    """Each library below a folder, or below an image's environment, where the engine's layers lie on this machine."""
    if Path(image).is_dir():
        yield from _below(Path(image), Path(image))
        return
    with connect(f"unix://{private_socket()}") as engine:
        for layer in layer_folders(engine, image):
            yield from _below(layer / "opt" / "venv", layer)


def _below(folder: Path, top: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("**/*.so*")):
        if _LIBRARY.search(path.name) and path.is_file() and not path.is_symlink():
            yield str(path.relative_to(top)), path


if __name__ == "__main__":
    sys.exit(main())
