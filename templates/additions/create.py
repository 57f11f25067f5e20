"""create.py FOLDER: makes the environment that users install into, over the one that runs this.

A virtual environment whose packages come first and the image's second (a .pth file). It holds a copy of the image's
metadata (dist-info), so that pip and uv count what the image has as installed, and take only the copy away when a
newer release is put over it; and the image's commands, started with its own interpreter.
"""

import os
import shutil
import site
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

_METADATA = ("METADATA", "RECORD", "WHEEL", "INSTALLER", "entry_points.txt", "top_level.txt", "direct_url.json")
_SCRIPT = 1 << 16
"""No command of a package is longer."""


class _Builder(venv.EnvBuilder):
    """Without shell scripts to activate it: it is on the PATH."""

    def setup_scripts(self, context: object) -> None:
        pass


def main(target: Path) -> int:
    """Make it beside its place and move it there: who looks meanwhile sees none, or all of it."""
    if os.access(target, os.R_OK):  # another user's
        return _refuse(target, f"{target} belongs to uid {target.stat().st_uid}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        return _refuse(target, f"{error.filename}: {error.strerror}")
    try:
        _fill(made, target)
        made.chmod(0o755)
        made.rename(target)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if not (target / "bin" / "python").exists():  # another process was not faster
            return _refuse(target, f"{error.filename}: {error.strerror}")
    return 0


def _fill(made: Path, target: Path) -> None:
    _Builder(symlinks=True).create(made)
    own = made / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    folders = [folder for folder in dict.fromkeys(map(os.path.realpath, _packages())) if Path(folder).is_dir()]
    (own / "_image.pth").write_text("".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders))
    for folder in folders:
        for info in Path(folder).glob("*.dist-info"):
            (own / info.name).mkdir()
            for name in _METADATA:
                if (info / name).is_file():
                    shutil.copyfile(info / name, own / info.name / name)
    for command in Path(sys.executable).parent.iterdir():
        _take(command, made / "bin" / command.name, target / "bin" / "python")


def _packages() -> "list[str]":
    """Folders of the packages that this interpreter has, its own before its system's."""
    return [folder for folder in sys.path if folder in {*site.getsitepackages(), sysconfig.get_path("platlib")}]


def _take(command: Path, to: Path, python: Path) -> None:
    """A package's command, started with the new interpreter. Everything else in that folder is no package's."""
    if to.exists() or not command.is_file() or command.is_symlink() or command.stat().st_size > _SCRIPT:
        return
    first, _, rest = command.read_bytes().partition(b"\n")
    if first == b"#!" + os.fsencode(sys.executable):
        to.write_bytes(b"#!" + os.fsencode(python) + b"\n" + rest)
        to.chmod(0o755)


def _refuse(target: Path, cause: str) -> int:
    cache = target.parent.parent
    # Path.exists raises for a folder that may not be looked into.
    there = next(path for path in (target, *target.parents) if os.path.exists(path))  # noqa: PTH110
    owner = there.stat().st_uid
    if os.path.ismount(cache) and cache in there.parents and owner != os.getuid():
        chown = f"docker run --rm --user 0 -v VOLUME:{cache} IMAGE chown -R {os.getuid()} {cache}"
        sys.stderr.write(
            f"truetag: nothing can be installed: {cause}; uid {owner} used this volume first. Give it to "
            f"uid {os.getuid()} once (`{chown}`), or mount another\n"
        )
        return 1
    ways = (
        f"a named volume (`-v truetag-cache:{cache}`)",
        f"a folder of its own (`mkdir cache`, then `--user $(id -u):$(id -g) -v $PWD/cache:{cache}`)",
        f"one for everybody (`install -d -m 1777 cache`, then `-v $PWD/cache:{cache}`)",
        f"or, on a read-only root, `--tmpfs {cache.parent}:exec`",
    )
    wants = f"uid {os.getuid()} needs a folder that it may write to"
    sys.stderr.write(f"truetag: nothing can be installed: {cause}. {wants}: {', '.join(ways)}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
