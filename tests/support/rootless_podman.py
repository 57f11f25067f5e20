"""Podman as a user without rights has it: Debian's, with its Docker interface. It needs root, to make that user."""

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from images.host import apt

PACKAGES = ("podman", "uidmap", "catatonit")
PROGRAMS = ("podman", "newuidmap", "catatonit")
USER = "truetag-podman"
_NUMBERS = range(58000, 60000)
"""Of the user. The next free one, which `useradd` would take, may be that of an image's user: its processes in Docker's
containers would be taken for the user's own, and killed with them."""
_PATIENCE = 60.0


@contextmanager
def rootless_podman(insecure: str) -> Iterator[str]:
    """Its address, for as long as it is used. Everything that it keeps goes with its user. `insecure`: a registry."""
    assert os.geteuid() == 0, "making a user needs root"
    if not all(map(shutil.which, PROGRAMS)):
        apt.install(*PACKAGES)
    _remove()
    subprocess.run(["useradd", "--create-home", "--uid", str(_free()), USER], check=True)
    home = Path(f"~{USER}").expanduser()
    try:
        with _serving(home, insecure) as socket:
            yield f"unix://{socket}"
    finally:
        _remove()


@contextmanager
def _serving(home: Path, insecure: str) -> Iterator[Path]:
    runtime, socket = home / "run", home / "run" / "podman.sock"
    config = home / ".config" / "containers"
    for folder in (config, runtime):
        folder.mkdir(parents=True)
    (config / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
    (config / "registries.conf").write_text(f'[[registry]]\nlocation = "{insecure}"\ninsecure = true\n')
    subprocess.run(["chown", "-R", f"{USER}:", str(home)], check=True)
    runtime.chmod(0o700)
    environment = {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "PATH": os.environ["PATH"]}
    with (home / "log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time=0", f"unix://{socket}"],
            cwd=home,
            env=environment,
            user=USER,
            group=USER,
            extra_groups=[],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _PATIENCE
        while not socket.exists():
            assert service.poll() is None and time.monotonic() < deadline, (home / "log").read_text()
            time.sleep(0.1)
        yield socket
    finally:
        service.terminate()
        service.wait()


def _free() -> int:
    """A number that no user has, and no process."""
    taken = {user.pw_uid for user in pwd.getpwall()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            taken.add(process.stat().st_uid)
    return next(number for number in _NUMBERS if number not in taken)


def _remove() -> None:
    """The user with all its processes and files, those of its containers' users among them."""
    try:
        own = pwd.getpwnam(USER).pw_uid
    except KeyError:
        return
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == own:
                os.kill(int(process.name), signal.SIGKILL)
    subprocess.run(["userdel", "--remove", "--force", USER], check=False, capture_output=True)
    shutil.rmtree(Path("/home") / USER, ignore_errors=True)
