"""An image that attacks its auditor: it lies, floods, hangs, and speaks in control characters."""

from collections.abc import Mapping

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
RIGHT_TO_LEFT = "\u202e"
LIE = (
    '{"probe": "cpu.imports", "outcome": "completed", "seconds": 0.1, "measurements": '
    '[{"subject": "torch", "seconds": 0.1, '
    '"evidence": {"orders": {"first": {"error": null, "said": []}}}}], '
    '"exit_code": 0, "log": ""}'
)
"""A record of a probe, as the suite prints it: torch was imported without an error."""
STOLEN = '{"probe": "static.files", "outcome": "completed", "seconds": 0.1, "measurements": []}'
"""A record of a probe that only our own Python runs."""
_METADATA = f"""Metadata-Version: 2.1
Name: evil[red]x[/red]<script>alert(1)</script>
Version: 1.0
License: free{ESCAPE}
Requires-Dist: torch=={RIGHT_TO_LEFT}2

"""
_TORCH = "__version__ = '2.7.1+cu126'\ncuda = '12.6'\n"
_RECORD = (
    "pipe,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\nevil-1.0.dist-info/METADATA,,\n"
)
_LIES = f"""\
#!/bin/sh
printf '%s\\n' '{STOLEN}' '{LIE}' '::error::owned' '##[error]owned'
exec tr '\\0' x < /dev/zero
"""
_HANGS = "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1000; done\n"

_FILES: Mapping[str, str] = {
    "usr/local/bin/python3": _LIES,
    "usr/local/bin/python3.11": _LIES,
    "usr/local/bin/nvidia-smi": "#!/bin/sh\necho 'NVIDIA H100, 9.0, 81559, 999.99'\n",
    "usr/local/lib/python3.11/site-packages/torch/version.py": _TORCH,
    "usr/local/lib/python3.11/site-packages/evil-1.0.dist-info/METADATA": _METADATA,
    "usr/local/lib/python3.11/site-packages/evil-1.0.dist-info/RECORD": _RECORD,
    "opt/hangs/bin/python3.12": _HANGS,
    "opt/hangs/lib/python3.12/site-packages/torch/version.py": _TORCH,
    "etc/ld.so.preload": "/evil.so\n",
}
_SITE = "/usr/local/lib/python3.11/site-packages"
_LINES = (
    "COPY root/ /",
    f"RUN mkfifo {_SITE}/pipe {_SITE}/pipe.so",
    # Names of files with control characters, and with commands of CI systems.
    rf"RUN printf 'x = 1\n' > \"$(printf '{_SITE}/a\033]0;owned\007\342\200\256b.py')\"",
    rf"RUN cd {_SITE} && echo > \"$(printf 'c\n::error::owned ##[error]owned.py')\"",
    "ENV LD_PRELOAD=/evil.so LD_LIBRARY_PATH=/evil PYTHONPATH=/evil PYTHONHOME=/evil "
    "PATH=/usr/local/bin:/usr/bin:/bin",
)


def context(base: str) -> Mapping[str, bytes]:
    """Return the image's build context. Scripts (`#!`) are executable there."""
    dockerfile = "\n".join([f"FROM {base}", *_LINES, ""]).replace('\\"', '"')
    files = {"Dockerfile": dockerfile.encode()}
    for path, text in _FILES.items():
        files[f"root/{path}"] = text.encode()
    return files
