"""The other broken images of the catalogue, and more of other kinds: each caught by the check named."""

import json
from pathlib import Path

import pytest

from images.engine import Engine, ImageInfo
from tests.support.broken_images import INSTALL, NAME, SITE, Fault, judged
from validate.claims import ClaimSet
from validate.judging import Status

pytestmark = pytest.mark.engine

_MOUNTS = (
    "RUN --mount=type=bind,source=breaks,target=/run/breaks --mount=type=bind,source=suite,target=/run/suite "
    "export PYTHONDONTWRITEBYTECODE=1; "
)
KERNELS = f"{_MOUNTS} python3 /run/breaks/kernels.py"
EXTENSION = f"{_MOUNTS} sh /run/breaks/extension.sh"
RECORD = f"{_MOUNTS} python3 /run/breaks/record.py"
BITSANDBYTES = f"{SITE}/bitsandbytes/libbitsandbytes_cuda126.so"

CATALOGUE = [
    Fault(
        "01-nccl-for-13-then-for-12",
        f"{INSTALL} nvidia-nccl-cu13==2.28.9 && pip install -q --no-deps --no-cache-dir --force-reinstall "
        "nvidia-nccl-cu12==2.26.2",
        "S2",
        "files",
        "nvidia/nccl/lib/libnccl.so.2 is claimed by nvidia-nccl-cu12 2.26.2 and nvidia-nccl-cu13 2.28.9",
    ),
    Fault(
        "03-another-cuda-for-bitsandbytes",
        "RUN cp -a /usr/local/cuda-12.6 /usr/local/cuda-13.0\nENV BNB_CUDA_VERSION=130",
        "S7",
        "environment",
        "BNB_CUDA_VERSION=130",
    ),
    Fault(
        "04-backward-kernels-lack-the-arch",
        f"{KERNELS} relabel {SITE}/xformers/flash_attn_3/_C.so 90 '*FlashAttnBwdSm90*'",
        "S5",
        "xformers",
        "have no code for sm_90: cutlass::device_kernel<flash::enable_sm90_or_later<FlashAttnBwdSm90",
    ),
    Fault(
        "05-kernels-are-stubs",
        f"{KERNELS} stub {BITSANDBYTES} 90 '*Optimizer*'",
        "S5",
        "bitsandbytes",
        "are empty stubs for sm_90: kOptimizer",
    ),
    Fault(
        "06-flash-attn-4-alone",
        f"{INSTALL} --pre flash-attn-4==4.0.0b36",
        "C1",
        "xformers",
        "flash_attn",
    ),
    Fault(
        "10-warm-caches-leftovers",
        'USER trainer\nRUN python3 -c "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(9))"\n'
        "USER root\nRUN rm -f /usr/bin/gcc /usr/bin/g++ /usr/bin/x86_64-linux-gnu-g*",
        "S8",
        "leftovers",
        "of a user's cache are left: /home/trainer/.cache/torchinductor",
    ),
    Fault(
        "10-warm-caches-compiler",
        "RUN rm -f /usr/bin/gcc /usr/bin/cc /usr/bin/g++ /usr/bin/c++ /usr/bin/x86_64-linux-gnu-g*",
        "C3",
        "triton-launcher",
        "no C compiler",
    ),
    Fault("11-tf32-forced", "ENV NVIDIA_TF32_OVERRIDE=1", "S7", "environment", "NVIDIA_TF32_OVERRIDE=1"),
    Fault(
        "12-cuda-compat-on-the-loaders-path",
        "RUN mkdir -p /usr/local/cuda-12.6/compat && cp /lib/x86_64-linux-gnu/libz.so.1 "
        "/usr/local/cuda-12.6/compat/libcuda.so.1\nENV LD_LIBRARY_PATH=/usr/local/cuda-12.6/compat",
        "S6",
        "toolkit",
        "/usr/local/cuda-12.6/compat is on the loader's path (LD_LIBRARY_PATH): a forward-compatibility driver",
    ),
    Fault(
        "13-cpu-adam-with-avx512",
        f"{EXTENSION} cpu_adam -O3 -march=skylake-avx512 -mprefer-vector-width=512 -ffast-math",
        "C9",
        "avx512",
        "cpu_adam.so of cpu-adam holds",
    ),
    Fault(
        "15-nccl-conf",
        "RUN printf 'NCCL_P2P_DISABLE=1\\nNCCL_SHM_DISABLE=1\\n' >/etc/nccl.conf",
        "S7",
        "environment",
        "/etc/nccl.conf is not empty: NCCL_P2P_DISABLE=1",
    ),
]

OTHERS = [
    Fault(
        "built-for-another-torch",
        f"{EXTENSION} other_torch",
        "S4",
        "symbols",
        "other_torch.so of other-torch needs c10::Error",
    ),
    Fault(
        "built-on-a-newer-system",
        f"{EXTENSION} newer_libc -O0 && sed -i 's/GLIBC_2\\.14/GLIBC_2.99/' {SITE}/newer_libc.so",
        "S4",
        "symbols",
        "needs GLIBC_2.99 of libc.so.6",
    ),
    Fault(
        "a-second-openmp",
        "RUN cp -L /usr/lib/x86_64-linux-gnu/libgomp.so.1 /opt/libgomp-own.so.1 && printf "
        f"'import ctypes\\nctypes.CDLL(\"/opt/libgomp-own.so.1\")\\n' >>{SITE}/einops/__init__.py",
        "C7",
        "threads",
        "2 OpenMP runtimes in one process: /opt/libgomp-own.so.1",
    ),
    Fault(
        "a-secret-in-a-file",
        "RUN printf 'machine h login me password planted-7f3a9c\\n' >/root/.netrc",
        "S8",
        "secrets",
        "/root/.netrc holds logins",
    ),
    Fault(
        "a-secret-in-a-build-argument",
        "ARG HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH\nRUN true",
        "S8",
        "history",
        "a Hugging Face token",
    ),
    Fault("a-label-that-lies", "LABEL dev.truetag.torch=2.8.0", "S8", "labels", "dev.truetag.torch is '2.8.0'"),
    Fault("root-again", "RUN true", "S8", "settings", "it runs as root", last="USER root"),
    Fault("no-user-name", "ENV USER= LOGNAME=", "C8", "arbitrary UID", "uid not found: 61234"),
    Fault(
        "no-cxx-compiler",
        "RUN rm -f /usr/bin/g++ /usr/bin/c++ /usr/bin/x86_64-linux-gnu-g++*",
        "C5",
        "torch.compile",
        "g++",
    ),
    Fault(
        "compile-off-from-inside",
        f"RUN echo 'import torch._dynamo.config; torch._dynamo.config.disable = True' >>{SITE}/torch/__init__.py",
        "C5",
        "torch.compile",
        "captured nothing",
    ),
    Fault(
        "emptied-device-code",
        f"{KERNELS} empty {BITSANDBYTES} 90 '*'",
        "S5",
        "bitsandbytes",
        "the sm_90 code of 1 of 1 regions",
    ),
    Fault(
        "package-lists-left",
        "RUN echo x >/var/lib/apt/lists/deb_main_Packages",
        "S8",
        "leftovers",
        "apt's package lists",
    ),
    Fault("a-home-for-one", "RUN chmod 755 /home/trainer", "S8", "home", "/home/trainer"),
    Fault("caches-of-root", "RUN rm -r /home/trainer/.cache", "C8", "named volume", "uid 1001 can't write HF_HOME"),
    Fault(
        "caches-for-the-group",
        "RUN chgrp 0 /home/trainer/.cache && chmod 775 /home/trainer/.cache",
        "C8",
        "named volume, any uid:gid",
        "uid 61234 can't write",
    ),
    Fault(
        "caches-for-the-owner",
        "RUN chown 1001 /home/trainer/.cache && chmod 755 /home/trainer/.cache",
        "C8",
        "named volume, group 0",
        "uid 61234 can't write",
    ),
    Fault(
        "a-cache-beside-the-folder",
        "ENV TRITON_CACHE_DIR=/home/trainer/.triton",
        "C8",
        "own folder",
        "TRITON_CACHE_DIR is /home/trainer/.triton",
    ),
    Fault(
        "nobody-is-told",
        "RUN rm /opt/truetag/additions/*/create.py",
        "C8",
        "foreign folder",
        "is not told of -v truetag-cache:",
    ),
    Fault(
        "torch-is-not-held",
        "ENV PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT=",
        "C11",
        "pip",
        "pip replaces torch where a package asks for another",
    ),
    Fault("pip-without-a-place", "ENV PIP_PYTHON=", "C11", "pip", "pip can't add a package"),
    Fault("no-git", "RUN rm /usr/bin/git", "S9", "tools", "there is no git on the PATH"),
    Fault(
        "no-libibverbs",
        "RUN rm /usr/lib/x86_64-linux-gnu/libibverbs.so.1*",
        "S9",
        "verbs",
        "the loader finds no libibverbs.so.1: NCCL goes over sockets",
    ),
    Fault(
        "no-library-of-libibverbs",
        "RUN rm /lib/x86_64-linux-gnu/libnl-3.so.200*",
        "S9",
        "verbs",
        "needs libnl-3.so.200",
    ),
    Fault(
        "a-provider-of-another-release",
        "RUN sed -i 's/IBVERBS_PRIVATE_34/IBVERBS_PRIVATE_33/g' /usr/lib/x86_64-linux-gnu/libmlx5.so.1.*",
        "S9",
        "verbs",
        "needs IBVERBS_PRIVATE_33 of libibverbs.so.1",
    ),
    Fault(
        "an-index-of-ones-own",
        "RUN printf '[global]\\nindex-url = https://mirror.invalid/simple\\n' >/etc/pip.conf",
        "S7",
        "environment",
        "/etc/pip.conf is not empty",
    ),
    Fault("a-proxy-baked-in", "ENV HTTPS_PROXY=http://proxy.invalid:3128", "S7", "environment", "HTTPS_PROXY"),
]
"""Beyond the catalogue: faults of other kinds, each of a class that some check must know."""

HIDDEN = [
    Fault(
        "a-source-and-its-record",
        f"{RECORD} {SITE}/einops/__init__.py '^' 'import os; '",
        "S10",
        "wheels",
        "einops/__init__.py is not what the locked wheel of einops brought",
    ),
    Fault(
        "a-command-and-its-record",
        f"{RECORD} /opt/venv/bin/torchrun 'import sys' 'import sys, os'",
        "S10",
        "wheels",
        "/opt/venv/bin/torchrun is not the launcher of its entry point in torch",
    ),
    Fault(
        "device-code-and-its-record",
        f"{RECORD} {BITSANDBYTES} 'kQuantizeBlockwise' 'kQuantizeBlockwisf'",
        "S10",
        "wheels",
        "bitsandbytes/libbitsandbytes_cuda126.so is not what the locked wheel of bitsandbytes brought",
    ),
    Fault(
        "a-file-taken-out-with-its-row",
        f"RUN rm {SITE}/einops/packing.py && sed -i '/einops.packing.py/d' {SITE}/einops-*.dist-info/RECORD",
        "S10",
        "wheels",
        "einops-0.8.2.dist-info/RECORD lacks 1 files of the locked wheel of einops",
    ),
    Fault(
        "bytecode-of-another-source",
        f"RUN cd {SITE}/einops && cp -p __init__.py /tmp/kept && echo 'import os' >>__init__.py && "
        f"python3 -c \"import py_compile as p; p.compile('{SITE}/einops/__init__.py', "
        'invalidation_mode=p.PycInvalidationMode.UNCHECKED_HASH)" && mv /tmp/kept __init__.py',
        "C12",
        "bytecode",
        "einops/__pycache__/__init__.cpython-311.pyc is not what its source compiles to",
    ),
    Fault(
        "a-python-in-front",
        "RUN first=${PATH%%:*} && mkdir -p $first && "
        "printf '#!/bin/sh\\nexec /opt/venv/bin/python3 \"$@\"\\n' >$first/python3 && chmod 755 $first/python3",
        "S10",
        "lookup",
        "bin/python3 is found before the image's own",
    ),
    Fault(
        "a-folder-in-front",
        "RUN mkdir -p /opt/x/bin && ln -s /opt/venv/bin/python3 /opt/x/bin/python3\nENV PATH=/opt/x/bin:$PATH",
        "S10",
        "lookup",
        "/opt/x/bin is not as expected",
    ),
    Fault(
        "a-plugin-of-nccl",
        "RUN cp -L /usr/lib/x86_64-linux-gnu/libz.so.1 /usr/local/lib/libnccl-net.so",
        "S10",
        "lookup",
        "/usr/local/lib/libnccl-net.so is loaded by NCCL (its network plugin) if it is there",
    ),
    Fault(
        "a-setuid-program",
        "RUN install --mode 4755 /usr/bin/id /usr/local/sbin/helper",
        "S10",
        "privileges",
        "/usr/local/sbin/helper has mode 4755",
    ),
    Fault(
        "a-setuid-program-in-a-volume",
        "RUN install -D --mode 4755 /usr/bin/id /opt/data/helper\nVOLUME /opt/data",
        "S10",
        "privileges",
        "/opt/data/helper has mode 4755",
    ),
    Fault(
        "a-library-among-bytecode",
        f"RUN cp -L /usr/lib/x86_64-linux-gnu/libz.so.1 {SITE}/einops/__pycache__/z.so && "
        f"echo 'einops/__pycache__/z.so,,' >>{SITE}/einops-0.8.2.dist-info/RECORD",
        "S10",
        "wheels",
        "einops/__pycache__/z.so",
    ),
    Fault(
        "a-capability",
        "RUN cp /usr/bin/id /usr/local/sbin/helper && python3 -c \"import os; os.setxattr('/usr/local/sbin/helper', "
        "'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))\"",
        "S10",
        "privileges",
        "/usr/local/sbin/helper has mode 755 and capabilities",
    ),
    Fault(
        "a-file-of-debian",
        "RUN printf ' ' >>/usr/bin/git-shell",
        "S10",
        "files",
        "/usr/bin/git-shell is not as Debian's git has it",
    ),
    Fault(
        "a-path-of-the-loader",
        "RUN echo /opt/lib >/etc/ld.so.conf.d/a.conf",
        "S10",
        "lookup",
        "/etc/ld.so.conf.d/a.conf is loaded by the dynamic loader",
    ),
]
"""Changes that the image itself vouches for: what it should hold is known from outside."""

EVERY = [*CATALOGUE, *OTHERS, *HIDDEN]


@pytest.mark.parametrize(
    ("broken", "fault"), [(fault, fault) for fault in EVERY], indirect=["broken"], ids=[fault.name for fault in EVERY]
)
def test_each_fault_is_caught_by_the_check_named(engine: Engine, claims: ClaimSet, broken: str, fault: Fault) -> None:
    (row,) = judged(engine, broken, claims, fault.claim, subject=fault.subject).claims
    assert row.status is Status.FAIL, row.reason
    assert fault.culprit in row.reason


def test_none_of_them_is_seen_in_the_parent(parent: ImageInfo, out: Path) -> None:
    """The parent's own verdict, of the build that gave it its name."""
    verdict = json.loads((out / NAME / "verdict.json").read_text())
    found = {(row["id"], row["subject"]): row["verdict"] for row in verdict["claims"]}
    assert verdict["digest"] == parent.id
    assert {(fault.claim, fault.subject): found.get((fault.claim, fault.subject)) for fault in EVERY} == {
        (fault.claim, fault.subject): "PASS" for fault in EVERY
    }
