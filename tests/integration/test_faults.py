"""The broken images of the catalogue, and more of other kinds: each fault is caught by the check named.

Faults that do not touch each other share an image, which is built and tried once: the reason names each of them.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from images.engine import Engine, ImageInfo
from tests.support.broken_images import INSTALL, NAME, SITE, Fault, broken, judged
from validate.claims import ClaimSet
from validate.judge import ClaimVerdict
from validate.judging import Status

pytestmark = pytest.mark.engine

Found = Mapping[tuple[str, str], ClaimVerdict]
"""Number and subject of a claim -> its verdict."""
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
        "02-bitsandbytes-without-its-cuda-library",
        f"RUN rm {SITE}/bitsandbytes/libbitsandbytes_cuda126.so",
        "C2",
        "bitsandbytes",
        "libbitsandbytes_cuda126.so",
    ),
    Fault(
        "07-torchao-for-cuda-13", f"{INSTALL} --force-reinstall torchao==0.18.0", "S3", "environment", "libcudart.so.13"
    ),
    Fault("08-triton-interpreted", "ENV TRITON_INTERPRET=1", "S7", "environment", "TRITON_INTERPRET"),
    Fault("08-dynamo-switched-off", "ENV TORCHDYNAMO_DISABLE=1", "S7", "environment", "TORCHDYNAMO_DISABLE"),
    Fault("09-python-optimised", "ENV PYTHONOPTIMIZE=1", "S7", "environment", "PYTHONOPTIMIZE"),
    Fault(
        "14-four-bit-is-a-no-op",
        "RUN echo 'def replace_with_bnb_linear(model, *a, **k): return model' "
        f">> {SITE}/transformers/integrations/bitsandbytes.py",
        "C10",
        "nf4-weights",
        "Linear",
    ),
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
        "other-cpu-torch-of-the-same-number",
        f'RUN sed -i "s/^cuda.*/cuda = None/" {SITE}/torch/version.py',
        "S1",
        "torch",
        "CUDA",
    ),
    Fault(
        "other-gcc-removed",
        "RUN rm -f /usr/bin/gcc /usr/bin/cc /usr/bin/x86_64-linux-gnu-gcc*",
        "C3",
        "c-extension",
        "gcc",
    ),
    Fault("other-file-edited", f"RUN echo '# harmless' >> {SITE}/peft/__init__.py", "S2", "files", "peft/__init__.py"),
    Fault(
        "other-stubs-on-the-loaders-path",
        "RUN mkdir -p /usr/local/cuda-12.6/compat && ENV=1\nENV LD_LIBRARY_PATH=/usr/local/cuda-12.6/compat",
        "S6",
        "toolkit",
        "compat",
    ),
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
    Fault(
        "resumed-without-the-optimizers-state",
        "RUN sed -i 's/def _load_optimizer_and_scheduler(self, checkpoint):/&\\n        return/' "
        f"{SITE}/transformers/trainer.py",
        "C15",
        "resume",
        "deviation is",
    ),
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
        f"{RECORD} {SITE}/accelerate/__init__.py '^' 'import os; '",
        "S10",
        "wheels",
        "accelerate/__init__.py is not what the locked wheel of accelerate brought",
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
        "RUN cp /usr/bin/id /usr/local/sbin/able && python3 -c \"import os; os.setxattr('/usr/local/sbin/able', "
        "'security.capability', bytes.fromhex('0100000200200000000000000000000000000000'))\"",
        "S10",
        "privileges",
        "/usr/local/sbin/able has mode 755 and capabilities",
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

EVERY = {fault.name: fault for fault in (*CATALOGUE, *OTHERS, *HIDDEN)}
IMAGES = {
    "settings": (
        "03-another-cuda-for-bitsandbytes",
        "11-tf32-forced",
        "15-nccl-conf",
        "an-index-of-ones-own",
        "no-git",
        "no-libibverbs",
        "a-setuid-program",
        "a-capability",
        "a-plugin-of-nccl",
        "a-path-of-the-loader",
        "caches-of-root",
    ),
    "switches": (
        "a-file-of-debian",
        "08-triton-interpreted",
        "08-dynamo-switched-off",
        "09-python-optimised",
        "a-proxy-baked-in",
        "a-folder-in-front",
        "caches-for-the-group",
        "nobody-is-told",
    ),
    "leftovers": (
        "07-torchao-for-cuda-13",
        "a-python-in-front",
        "emptied-device-code",
        "a-provider-of-another-release",
        "package-lists-left",
        "a-secret-in-a-file",
        "a-secret-in-a-build-argument",
        "a-label-that-lies",
        "a-home-for-one",
        "12-cuda-compat-on-the-loaders-path",
        "a-cache-beside-the-folder",
        "a-setuid-program-in-a-volume",
        "root-again",
    ),
    "records": (
        "a-source-and-its-record",
        "device-code-and-its-record",
        "a-file-taken-out-with-its-row",
        "bytecode-of-another-source",
        "caches-for-the-owner",
        "other-stubs-on-the-loaders-path",
    ),
    "files": (
        "01-nccl-for-13-then-for-12",
        "other-file-edited",
        "other-cpu-torch-of-the-same-number",
        "04-backward-kernels-lack-the-arch",
        "05-kernels-are-stubs",
        "built-for-another-torch",
        "built-on-a-newer-system",
        "13-cpu-adam-with-avx512",
        "a-library-among-bytecode",
    ),
    "compilers": (
        "a-command-and-its-record",
        "no-library-of-libibverbs",
        "10-warm-caches-leftovers",
        "10-warm-caches-compiler",
        "other-gcc-removed",
        "no-cxx-compiler",
    ),
    "runs": (
        "compile-off-from-inside",
        "a-second-openmp",
        "resumed-without-the-optimizers-state",
        "14-four-bit-is-a-no-op",
        "no-user-name",
        "torch-is-not-held",
    ),
    "packages": ("06-flash-attn-4-alone", "02-bitsandbytes-without-its-cuda-library", "pip-without-a-place"),
}
"""Image -> its faults, in the order of their layers: what installs or compiles comes before what hinders that."""


def test_each_fault_is_in_one_image() -> None:
    assert sorted(name for faults in IMAGES.values() for name in faults) == sorted(EVERY)


@pytest.fixture(scope="module")
def found(engine: Engine, claims: ClaimSet, parent: ImageInfo) -> Callable[[str], Found]:
    """The verdicts of an image by its name. Each is built and tried once, by the claims of its faults."""

    @cache
    def of(image: str) -> Found:
        faults = [EVERY[name] for name in IMAGES[image]]
        about = {(fault.claim, fault.subject) for fault in faults}
        asked = tuple(one for one in claims.claims if (one.id, one.subject) in about)
        with broken(engine, parent, image, faults) as tag:
            verdict = judged(engine, tag, ClaimSet(image=claims.image, claims=asked))
        assert verdict.overall is Status.FAIL
        return {(row.claim.id, row.claim.subject): row for row in verdict.claims}

    return of


@pytest.mark.parametrize(
    ("group", "name"), [pytest.param(group, name, id=name) for group, names in IMAGES.items() for name in names]
)
def test_each_fault_is_caught_by_the_check_named(found: Callable[[str], Found], group: str, name: str) -> None:
    fault = EVERY[name]
    row = found(group)[fault.claim, fault.subject]
    assert row.status is Status.FAIL, row.reason
    assert fault.culprit in row.reason


def test_none_of_them_is_seen_in_the_parent(parent: ImageInfo, out: Path) -> None:
    """The parent's own verdict, of the build that gave it its name."""
    verdict = json.loads((out / NAME / "verdict.json").read_text())
    found = {(row["id"], row["subject"]): row["verdict"] for row in verdict["claims"]}
    assert verdict["digest"] == parent.id
    assert {(fault.claim, fault.subject): found.get((fault.claim, fault.subject)) for fault in EVERY.values()} == {
        (fault.claim, fault.subject): "PASS" for fault in EVERY.values()
    }
