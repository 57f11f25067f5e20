"""What every image is held to, as data: each row with its reason. `images/validation/claims/` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from validate.checks.cpu.instructions import InstructionsExpect
    from validate.checks.cpu.native import NativeRow
    from validate.checks.static.libraries import LinkException

DENIED_VARIABLES: Mapping[str, str] = {
    "BNB_CUDA_VERSION": "bitsandbytes loads another CUDA's library than torch's",
    "TRITON_INTERPRET": "Triton kernels run in Python, not on the GPU",
    "TRITON_PTXAS*": "Triton assembles with another ptxas than its own",
    "TRITON_KERNEL_OVERRIDE": "Triton takes kernels from a folder",
    "TRITON_OVERRIDE_*": "Triton compiles for another GPU than the one it runs on",
    "TRITON_CACHE_DIR": "kernels compiled elsewhere are run, and a missing compiler is not noticed",
    "TORCHDYNAMO_*": "torch.compile is switched off or swallows its errors",
    "TORCH_COMPILE_*": "torch.compile is switched off or changed",
    "TORCHINDUCTOR_*": "torch.compile generates other code, or takes it from a baked cache",
    "PYTORCH_JIT": "TorchScript is switched off",
    "PYTHONOPTIMIZE": "every `assert` of every library is gone",
    "PYTHONPATH": "its folders come before the image's packages",
    "PYTHONHOME": "Python takes its standard library from elsewhere",
    "PYTHONUSERBASE": "packages of another folder are added",
    "PYTHONSTARTUP": "interactive Python runs a file first",
    "NVIDIA_TF32_OVERRIDE": "float32 products are rounded to TF32, or TF32 can't be switched on",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "float32 products are rounded to TF32",
    "TORCH_CUDNN_*": "convolutions take another path",
    "TORCH_BLAS_PREFER_*": "products take another library",
    "LD_PRELOAD": "every process loads a library first",
    "LD_AUDIT": "the loader's answers can be rewritten",
    "NCCL_*": "it fits one machine's network and slows or breaks others",
    "TORCH_NCCL_*": "it fits one machine's network and slows or breaks others",
    "CUDA_VISIBLE_DEVICES": "GPUs are hidden",
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for",
    "CUDA_FORCE_PTX_JIT": "machine code is thrown away and compiled again",
    "CUDA_DISABLE_PTX_JIT": "newer GPUs can't run PTX",
    "CUDA_MODULE_LOADING": "the driver's lazy loading is overridden",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "XFORMERS_*": "operators are switched on or off",
    "FLASH_ATTENTION_*": "flash-attn takes another backend",
    "ACCELERATE_*": "training is moved off the GPU or onto another backend",
    "FSDP_*": "every run is sharded by it, whatever its own configuration says",
    "PARALLELISM_CONFIG_*": "every run is sharded by it, whatever its own configuration says",
    **dict.fromkeys(
        ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "a process without a launcher takes itself for one of several and waits for the others",
    ),
    "TORCH_FORCE_*WEIGHTS_ONLY_LOAD": "torch.load's protection is switched off or forced",
    "HF_HUB_OFFLINE": "no model can be downloaded",
    "TRANSFORMERS_OFFLINE": "no model can be downloaded",
    "OMP_NUM_THREADS": "it fits one machine's cores and slows others",
    "MKL_NUM_THREADS": "it fits one machine's cores and slows others",
    "*_PROXY": "it is the builder's network",
    "*_proxy": "it is the builder's network",
    "PIP_*": "pip installs from another index, or in another way",
    "UV_*": "uv installs from another index, or in another way",
    "SSL_CERT_*": "certificates of the builder's network are trusted",
    "REQUESTS_CA_BUNDLE": "certificates of the builder's network are trusted",
    "CURL_CA_BUNDLE": "certificates of the builder's network are trusted",
    "NVCC_*_FLAGS": "every CUDA compilation gets extra flags",
}
"""Variable patterns that make a right answer come from the wrong path. A profile that needs
one sets it in the matrix."""

START_FILES: Mapping[str, str] = {
    "_virtualenv.pth": "written by virtualenv and `uv venv`, which record no owner",
    "_virtualenv.py": "written by virtualenv and `uv venv`, which record no owner",
}
"""Files that may run when Python starts, or lie beside packages, though no distribution lists them."""

MADE_BY_BUILDS: Mapping[str, Sequence[str]] = {
    "deepspeed": ("deepspeed/git_version_info_installed.py",),
}
"""Distribution -> files that its build makes and its source archive does not have: patterns below site-packages."""

HOST_LIBRARIES: Sequence[str] = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvidia-*.so.1",
    "libnvcuvid.so.1",
    "libnvoptix.so.1",
)
"""The driver's libraries: NVIDIA's container runtime injects them from the host."""

OTHER_PLATFORMS: Mapping[str, str] = {
    "libamdhip64.so*": "AMD ROCm",
    "libhip*.so*": "AMD ROCm",
    "libroc*.so*": "AMD ROCm",
    "libhsa-*.so*": "AMD ROCm",
    "librccl.so*": "AMD ROCm",
    "libMIOpen.so*": "AMD ROCm",
    "libsycl.so*": "Intel oneAPI",
    "libze_loader.so*": "Intel oneAPI",
    "libur_loader.so*": "Intel oneAPI",
    "libmkl_sycl*.so*": "Intel oneAPI",
    "libimf.so": "Intel oneAPI",
    "libintlc.so*": "Intel oneAPI",
    "libirng.so": "Intel oneAPI",
    "libsvml.so": "Intel oneAPI",
}
"""Runtimes of other accelerators. A library that lacks only these (or another CUDA major's) is no fault where a sibling
of the same family, in the same folder, serves the image's own CUDA."""

_RDMA = ("libibverbs.so.*", "libmlx5.so.*", "librdmacm.so.*")

LINK_EXCEPTIONS: Sequence[LinkException] = (
    {
        "path": "nvidia/*/libcufile_rdma.so.*",
        "names": [*_RDMA],
        "reason": "GPUDirect Storage over RDMA: libcufile opens it only where the network's libraries are installed",
    },
    {
        "path": "nvidia/nvshmem/lib/nvshmem_transport_*.so*",
        "names": [*_RDMA, "libucp.so.*", "libucs.so.*", "libfabric.so.*"],
        "reason": "one NVSHMEM plugin a network: opened by name, only the one that the job asks for",
    },
    {
        "path": "nvidia/nvshmem/lib/nvshmem_bootstrap_*.so*",
        "names": ["libmpi.so.*", "libpmix.so.*", "liboshmem.so.*"],
        "reason": "one NVSHMEM plugin a launcher: opened by name, only the one that the job asks for",
    },
    {
        "path": "triton/backends/nvidia/lib/cupti/*",
        "names": ["libcupti.so.*"],
        "reason": "Triton's profiler opens its own CUPTI by path (Triton 3.6 beside CUDA 13 still brings CUDA 12's)",
    },
    {
        "path": "numba/np/ufunc/tbbpool.*",
        "names": ["libtbb.so.*"],
        "reason": "one numba plugin a threading layer: Intel's TBB is taken only where it is installed",
    },
)
"""Libraries that lack something by design: `names` may be missing from (or, for a CUDA library, provided by) `path`."""

_STUB = "a stub in place of a library of the driver or the toolkit: for linkers, nothing loads it"
TOOLKIT_EXCEPTIONS: Sequence[LinkException] = (
    {
        "path": "bin/cuda-gdb-python3.*-tui",
        "names": ["libpython3.*.so.*"],
        "reason": "a debugger's builds for each Python, from CUDA 12.5 on: none of them need start to train a model",
    },
    {"path": "lib/stubs/*.so", "names": ["*"], "reason": _STUB},
    {"path": "lib64/stubs/*.so", "names": ["*"], "reason": _STUB},
)
"""The same of what lies in a devel toolkit, as a person's own base brings it."""

_ANY_MAJOR: Mapping[str, None] = dict.fromkeys(
    (
        "libcudnn",
        "libcudnn_adv",
        "libcudnn_cnn",
        "libcudnn_engines_precompiled",
        "libcudnn_engines_runtime_compiled",
        "libcudnn_graph",
        "libcudnn_heuristic",
        "libcudnn_ops",
        "libcufile",
        "libcurand",
        "libcusparseLt",
        "libnccl",
        "libnvshmem_host",
    )
)

_CUDA_LIBRARIES: Mapping[int, Mapping[str, str]] = {
    11: {
        "libcudart": "11",
        "libcublas": "11",
        "libcublasLt": "11",
        "libnvrtc": "11",
        "libcupti": "11",
        "libcufft": "10",
    },
    12: {
        **dict.fromkeys(("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink", "libcupti"), "12"),
        "libcufft": "11",
        "libcusolver": "11",
        "libcusparse": "12",
    },
    13: {
        **dict.fromkeys(("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink", "libcupti"), "13"),
        "libcufft": "12",
        "libcusolver": "12",
        "libcusparse": "12",
    },
}
"""SONAME versions of NVIDIA's wheels of each CUDA major (read from the wheels that torch 2.7.1 and 2.11.0 bring; CUDA
11 from what bitsandbytes' CUDA 11.8 library needs)."""


def cuda_libraries(major: int) -> dict[str, str | None]:
    """CUDA's libraries by stem, each with the SONAME version of this CUDA major; None: the version says nothing of it.

    Raises KeyError for a major that is not known here.
    """
    return {**_ANY_MAJOR, **_CUDA_LIBRARIES[major]}


TOOLKIT_PARTS: Sequence[str] = (
    "ptxas",
    "nvvm",
    "libdevice",
    "nvrtc",
    "nvrtc headers",
    "cudart",
    "cudart headers",
    "driver headers",
    "crt headers",
)
"""The parts of a toolkit that are published as wheels for CUDA 12 and 13 alike."""

DEVEL_TOOLKIT_PARTS: Sequence[str] = ("nvcc", "compiler passes")
"""What a `-devel` image has besides."""

IMPORT_NAMES: Mapping[str, tuple[str, ...]] = {
    "nvidia-ml-py": ("pynvml",),
    "fbgemm-gpu-genai": ("fbgemm_gpu",),
    "pyyaml": ("yaml",),
    "pillow": ("PIL",),
    "scikit-learn": ("sklearn",),
    "flash-attn-4": ("flash_attn",),
    "tensorboardx": ("tensorboardX",),
}
"""Distributions that are imported under another name than their own."""


def modules_of(distribution: str) -> tuple[str, ...]:
    """The modules to import of a distribution, the most telling first."""
    return IMPORT_NAMES.get(distribution, (distribution.replace("-", "_"),))


NATIVE: Mapping[str, NativeRow] = {
    "triton": {"libraries": ["triton/_C/libtriton.so"], "symbols": ["PyInit_libtriton"], "cuda_major": None},
    "xformers": {
        "modules": ["xformers.ops"],
        "libraries": ["xformers/**/_C*.so"],
        "operators": ["xformers::sparse24_apply", "xformers::sparse24_sparsify_both_ways"],
    },
    "flash-attn": {
        "modules": ["flash_attn"],
        "libraries": ["flash_attn_2_cuda*.so"],
        "symbols": ["PyInit_flash_attn_2_cuda"],
    },
    "causal-conv1d": {
        "modules": ["causal_conv1d"],
        "libraries": ["causal_conv1d_cuda*.so"],
        "symbols": ["PyInit_causal_conv1d_cuda"],
    },
    "mamba-ssm": {
        "modules": ["mamba_ssm"],
        "libraries": ["selective_scan_cuda*.so"],
        "symbols": ["PyInit_selective_scan_cuda"],
    },
    "torchvision": {
        "modules": ["torchvision", "torchvision.io"],
        "libraries": ["torchvision/_C.so", "torchvision/image.so"],
        "operators": ["torchvision::nms", "torchvision::roi_align"],
    },
    "torchao": {
        "libraries": ["torchao/_C*.so"],
        "operators": ["torchao::rowwise_scaled_linear_sparse_cutlass_f8f8"],
    },
    "bitsandbytes": {
        "loading": "by-path",
        "symbols": [
            "cquantize_blockwise_fp16_nf4",
            "cquantize_blockwise_bf16_nf4",
            "cdequantize_blockwise_bf16_nf4",
            "cadam_8bit_blockwise_grad_bf16",
            "cget_managed_ptr",
            "cigemmlt_32",
        ],
    },
}
"""Distributions with compiled CUDA code, and what of it must load: keys as validate/checks/cpu/native.py reads them."""

HELD = ("torch", "liger-kernel")
"""What additions may not move, beside CUDA's libraries and the distributions of NATIVE."""

OPERATORS_BEFORE: Mapping[str, tuple[str, Sequence[str]]] = {
    "torchao": ("0.10", ("torchao::rowwise_scaled_linear_cutlass_s8s4",)),
}
"""Operators of releases before one, which lack those of NATIVE: read from torchao 0.9.0 and 0.10.0."""

MOST_BYTES = 10 * 1000**3
MORE_BYTES_DEVEL = 6 * 1000**3
MORE_BYTES_PROFILE = 4 * 1000**3
"""Size budgets: the largest plain image, cu128-torch28, is 8.6 GB, its axolotl profile 10.1 GB (measured); a toolkit
with its static libraries is under 6 GB."""

DRIVER_CAPABILITIES: Sequence[str] = ("compute", "utility")
"""CUDA and nvidia-smi (NVIDIA container toolkit, "Driver Capabilities")."""

LEFTOVERS: Mapping[str, str] = {
    "*/.cache/*": "a user's cache",
    "/var/cache/uv/*": "uv's cache",
    "*/uv/wheels-v*": "uv's cache",
    "/var/lib/apt/lists/*": "apt's package lists",
    "/var/cache/apt/*": "apt's cache",
    "*/.triton/*": "Triton's cache",
    "*/torchinductor_*": "TorchInductor's cache",
    "*/fxgraph/*": "TorchInductor's cache",
    "*/torch_extensions/*": "compiled extensions",
    "*/.nv/ComputeCache/*": "the driver's cache of compiled kernels",
    "*/triton/*.cubin": "Triton's cache",
    "*/__triton_launcher*.so": "Triton's cache",
    "*.ttgir": "Triton's cache",
    "*/huggingface/hub/*": "downloaded models",
    "*/.npm/*": "npm's cache",
    "*/conda/pkgs/*": "conda's cache",
    "/tmp/*": "temporary files",
    "/var/tmp/*": "temporary files",
    "/root/.local/*": "root's own packages",
    "/workspace/*": "files where users put theirs",
}
"""What builds leave behind and no image needs. A warm compiler cache also hides a missing compiler."""

IMPORTED: Mapping[str, tuple[str, ...]] = {
    "triton": ("triton", "triton.language"),
    "xformers": ("xformers.ops",),
    "torchao": ("torchao", "torchao.quantization"),
    "transformers": ("transformers", "transformers.models.llama.modeling_llama"),
    "safetensors": ("safetensors.torch",),
    "liger-kernel": ("liger_kernel.transformers",),
}
"""What to import of a distribution whose top module imports little."""

NAMESPACES: Mapping[str, tuple[str, ...]] = {
    "axolotl": ("axolotl-contribs-lgpl", "axolotl-contribs-mit"),
}
"""Distributions whose package others extend by design: they put files of their own names into its folder."""

BUNDLED_OPENMP: Mapping[str, str] = {
    "scikit_learn.libs/libgomp-*.so*": "scikit-learn brings an OpenMP for its own loops, which torch never calls",
    "sentencepiece.libs/libgomp-*.so*": "sentencepiece brings an OpenMP for its own loops, which torch never calls",
}
"""OpenMP runtimes that may be loaded beside torch's, by the end of their path."""

NOT_IMPORTED = ("pip", "setuptools")
"""Pins that are tools, not libraries."""

IMPORT_TORCH_FIRST = (
    "accelerate",
    "bitsandbytes",
    "einops",
    "liger-kernel",
    "peft",
    "torchao",
    "torchvision",
    "transformers",
    "xformers",
)
"""What imports torch before any compiled code of its own, or has none: to import it first is to import torch first."""

COMPLAINTS: Sequence[str] = (
    r"(can.?t|cannot|could not|unable to|failed to) (load|import|open|find)",
    r"undefined\s+symbol",
    r"was (built|compiled) (for|with)",
    r"(not|without) (compiled|built) (with|for)|compiled without",
    r"skipping import",
    r"no module named",
    r"incompatible|not compatible|version mismatch",
    r"fall(ing|s)? ?back",
    r"(warning|error).*(cuda|c\+\+) extension",
    r"^\s*Traceback",
)
"""What packages say at import when a part of them does not work."""

HARMLESS: Mapping[str, str] = {
    r"kernels-community": "bitsandbytes looks for a faster CPU kernel in a package that is downloaded at run time",
    r"cannot find -laio": "DeepSpeed tries at import whether libaio is there, for offloading to NVMe: images have none",
    r"no (cuda|nvidia|gpu)|cuda is not available|nvml": "a trial without a GPU",
    r"triton is not supported on current platform|roll ?back to cpu": "fla's word for no GPU",
}
"""What may be said all the same."""

AVX512_NOISE: InstructionsExpect = {"most": 3, "per_bytes": 8_000_000}
"""AVX-512 instructions that a file may seem to hold by chance: 3, and one more for each so many bytes of code."""
SVE_NOISE: InstructionsExpect = {"most": 3, "per_bytes": 8_000_000, "extension": "sve"}
"""The same of SVE's on AArch64."""


class ExtensionsRow(TypedDict):
    """The compiled extensions of a package: modules to import, and patterns of its libraries."""

    modules: list[str]
    gpu: list[str]
    """With kernels for GPUs."""
    cpu: list[str]
    also: list[str]
    """More that may be there."""


EXTENSIONS: Mapping[str, ExtensionsRow] = {
    "colossalai": {
        "modules": ["colossalai._C.cpu_adam_x86", "colossalai._C.fused_optim_cuda", "colossalai._C.layernorm_cuda"],
        "gpu": [
            "colossalai/_C/fused_optim_cuda*.so",
            "colossalai/_C/layernorm_cuda*.so",
        ],
        "cpu": ["colossalai/_C/cpu_adam_x86*.so"],
        "also": ["colossalai/_C/*.so"],
    },
    "deepspeed": {
        "modules": [
            "deepspeed.ops.adam.cpu_adam_op",
            "deepspeed.ops.adam.fused_adam_op",
            "deepspeed.ops.lamb.fused_lamb_op",
        ],
        "gpu": ["deepspeed/ops/adam/fused_adam_op*.so", "deepspeed/ops/lamb/fused_lamb_op*.so"],
        "cpu": ["deepspeed/ops/adam/cpu_adam_op*.so"],
        "also": [],
    },
}
"""Packages of which a compiled wheel may take the place of pure Python (`extensions` of a profile)."""

DEBIAN_PYTHON = ("python3", "python3-dev", "python3-venv", "gcc", "g++", "libc6-dev", "ca-certificates")
"""Python, and what Triton and torch.compile call at run time."""

PROGRAMS: Mapping[str, str] = {
    "git": "git",
    "ssh": "openssh-client",
    "curl": "curl",
    "less": "less",
    "ps": "procps",
}
"""Program -> the package that has it."""

RDMA: Mapping[str, str] = {
    "libibverbs.so.1": "libibverbs1",
    "libmlx5.so.1": "ibverbs-providers",
    "librdmacm.so.1": "librdmacm1",
}
"""Library -> its package. NCCL opens the first by name, and goes over sockets without a word where it is not found."""

DEBIAN_TOOLS = (*PROGRAMS.values(), *RDMA.values())
