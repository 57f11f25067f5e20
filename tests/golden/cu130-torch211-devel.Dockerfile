# cu130-torch211-devel: torch 2.11.0 (CUDA 13.0 wheel), toolkit CUDA 13.0, Python 3.11
# Rendered from matrix.yaml by `nox -s render -- cu130-torch211-devel`. One stage a concern. Build a candidate, which has no name yet:
#     DOCKER_BUILDKIT=1 docker build -t cu130-torch211-devel-candidate .
# `nox -s validate -- cu130-torch211-devel --tag` judges the candidate, and names it cu130-torch211-devel if nothing fails.
# Nothing under /run, and no cache, stays in a layer: those are mounts. host/ holds this machine's CA and index settings.
# ---- system: Python, the compilers that Triton and torch.compile call at run time, tools, rdma-core, a user
FROM debian:bookworm-slim AS system
RUN --mount=type=tmpfs,target=/run \
    --mount=type=tmpfs,target=/tmp \
    --mount=type=tmpfs,target=/var/cache/apt \
    --mount=type=tmpfs,target=/var/lib/apt/lists \
    --mount=type=tmpfs,target=/var/log \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/user.sh,target=/run/scripts/user.sh \
    --mount=type=bind,source=scripts/debian.sh,target=/run/scripts/debian.sh \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/debian.sh 3.11 python3 python3-dev python3-venv gcc g++ libc6-dev ca-certificates \
       git openssh-client curl less procps libibverbs1 ibverbs-providers librdmacm1 \
    && python3 -m venv --without-pip /opt/venv \
    && SOURCE_DATE_EPOCH=1704067200 sh /run/scripts/user.sh 1001 /opt/venv/bin \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- tools: the installer, mounted by the steps below and in no layer of the image
FROM system AS tools
RUN --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=locks/tools.txt,target=/run/locks/tools.txt \
    --mount=type=bind,source=scripts/tools.sh,target=/run/scripts/tools.sh \
    sh /run/scripts/tools.sh /opt/venv/bin/python

# ---- toolkit: the parts of CUDA 13.0 that are published as wheels, laid out as NVIDIA's installer does
FROM system AS toolkit
RUN --mount=type=tmpfs,target=/run \
    --mount=type=cache,id=truetag-uv,target=/run/uv \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/toolkit.sh,target=/run/scripts/toolkit.sh \
    --mount=type=bind,source=locks/toolkit.txt,target=/run/locks/toolkit.txt \
    sh /run/scripts/toolkit.sh /opt/venv/bin/python 13.0 devel

# ---- cuda: NVIDIA's libraries
FROM system AS cuda
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/install.sh,target=/run/scripts/install.sh \
    --mount=type=bind,source=scripts/compile.py,target=/run/scripts/compile.py \
    --mount=type=bind,source=locks/cuda.txt,target=/run/locks/cuda.txt \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/install.sh /opt/venv/bin/python --require-hashes -r /run/locks/cuda.txt \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- torch: torch 2.11.0, triton 3.6.0
FROM cuda AS torch
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/install.sh,target=/run/scripts/install.sh \
    --mount=type=bind,source=scripts/compile.py,target=/run/scripts/compile.py \
    --mount=type=bind,source=locks/torch.txt,target=/run/locks/torch.txt \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/install.sh /opt/venv/bin/python --require-hashes -r /run/locks/torch.txt \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- kernels: flash-attn 2.8.3.post2, flash-attn-4 4.0.0b36, nvidia-cutlass-dsl-libs-cu13 4.8.1, bitsandbytes 0.50.2, torchao 0.18.0
FROM torch AS kernels
RUN --mount=type=tmpfs,target=/run \
    --mount=type=cache,id=truetag-uv,target=/run/uv \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/install.sh,target=/run/scripts/install.sh \
    --mount=type=bind,source=scripts/compile.py,target=/run/scripts/compile.py \
    --mount=type=bind,source=locks/kernels.txt,target=/run/locks/kernels.txt \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/install.sh /opt/venv/bin/python --require-hashes -r /run/locks/kernels.txt \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- libraries: transformers 5.17.0, accelerate 1.15.0, peft 0.21.2, datasets 5.2.0, safetensors 0.8.0, einops 0.8.2, pip 26.3
FROM kernels AS libraries
RUN --mount=type=tmpfs,target=/run \
    --mount=type=cache,id=truetag-uv,target=/run/uv \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/install.sh,target=/run/scripts/install.sh \
    --mount=type=bind,source=scripts/compile.py,target=/run/scripts/compile.py \
    --mount=type=bind,source=locks/libraries.txt,target=/run/locks/libraries.txt \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/install.sh /opt/venv/bin/python --require-hashes -r /run/locks/libraries.txt \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,from=toolkit,source=/usr/local/cuda-13.0,target=/run/toolkit \
    --mount=type=bind,source=scripts/devel.sh,target=/run/scripts/devel.sh \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    sh /run/scripts/record_change_times.sh \
    && { [ -e /usr/local/cuda-13.0 ] || cp -a /run/toolkit /usr/local/cuda-13.0; } \
    && sh /run/scripts/devel.sh /opt/venv/bin/python 13.0 \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- light: liger-kernel 0.8.5, nvidia-ml-py 13.615.71
FROM libraries AS light
RUN --mount=type=tmpfs,target=/run \
    --mount=type=cache,id=truetag-uv,target=/run/uv \
    --mount=type=bind,from=tools,source=/opt/tools,target=/run/tools \
    --mount=type=bind,source=host,target=/run/host \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/install.sh,target=/run/scripts/install.sh \
    --mount=type=bind,source=scripts/compile.py,target=/run/scripts/compile.py \
    --mount=type=bind,source=locks/light.txt,target=/run/locks/light.txt \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/install.sh /opt/venv/bin/python --require-hashes -r /run/locks/light.txt \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200

# ---- the image
FROM light AS image
RUN --mount=type=tmpfs,target=/run \
    --mount=type=bind,source=suite,target=/run/suite \
    --mount=type=bind,source=additions,target=/run/additions \
    --mount=type=bind,source=scripts/record_change_times.sh,target=/run/scripts/record_change_times.sh \
    --mount=type=bind,source=scripts/normalise_timestamps.py,target=/run/scripts/normalise_timestamps.py \
    --mount=type=bind,source=scripts/suite.sh,target=/run/scripts/suite.sh \
    sh /run/scripts/record_change_times.sh \
    && sh /run/scripts/suite.sh /opt/venv/bin/python /opt/truetag/additions/cu130-torch211-devel \
    && /opt/venv/bin/python -I -S -B /run/scripts/normalise_timestamps.py 1704067200
ENV PYTORCH_ALLOC_CONF="expandable_segments:True,roundup_power2_divisions:16" \
    XFORMERS_IGNORE_FLASH_VERSION_CHECK="1" \
    NVIDIA_VISIBLE_DEVICES="all" \
    NVIDIA_DRIVER_CAPABILITIES="compute,utility" \
    CUDA_HOME="/usr/local/cuda-13.0" \
    NVIDIA_REQUIRE_CUDA="cuda>=13.0" \
    TORCH_CUDA_ARCH_LIST="7.5;8.0;8.6;9.0;10.0;12.0" \
    XDG_CACHE_HOME="/home/trainer/.cache" \
    HF_HOME="/home/trainer/.cache/huggingface" \
    TORCH_HOME="/home/trainer/.cache/torch" \
    TORCHINDUCTOR_CACHE_DIR="/home/trainer/.cache/torchinductor" \
    TORCH_EXTENSIONS_DIR="/home/trainer/.cache/torch_extensions/cu130-torch211-devel" \
    TRITON_CACHE_DIR="/home/trainer/.cache/triton" \
    CUDA_CACHE_PATH="/home/trainer/.cache/nv" \
    MPLCONFIGDIR="/home/trainer/.cache/matplotlib" \
    WANDB_CACHE_DIR="/home/trainer/.cache/wandb" \
    WANDB_CONFIG_DIR="/home/trainer/.cache/wandb/config" \
    WANDB_DATA_DIR="/home/trainer/.cache/wandb/data" \
    PIP_CACHE_DIR="/home/trainer/.cache/pip" \
    UV_CACHE_DIR="/home/trainer/.cache/uv" \
    PIP_CONSTRAINT="/opt/truetag/constraints.txt" \
    PIP_BUILD_CONSTRAINT="/opt/truetag/constraints.txt" \
    PIP_PYTHON="/opt/truetag/additions/cu130-torch211-devel/python" \
    UV_CONSTRAINT="/opt/truetag/constraints.txt" \
    UV_BUILD_CONSTRAINT="/opt/truetag/constraints.txt" \
    UV_PYTHON="/opt/truetag/additions/cu130-torch211-devel/python" \
    PATH="/home/trainer/.cache/venvs/cu130-torch211-devel-ca56877ec498/bin:/opt/venv/bin:/usr/local/cuda-13.0/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
    HOME="/home/trainer" \
    USER="trainer" \
    LANG="C.UTF-8"
ENV UV_OVERRIDE="/opt/truetag/additions/cu130-torch211-devel/overrides.txt"
LABEL dev.truetag.archs="sm_75 sm_80 sm_86 sm_90 sm_100 sm_120" \
      dev.truetag.base="debian:bookworm-slim" \
      dev.truetag.base-origin="tag" \
      dev.truetag.image="cu130-torch211-devel" \
      dev.truetag.matrix-revision="a58561ee8ed4" \
      dev.truetag.min-driver="580" \
      dev.truetag.pins="{\"accelerate\":\"1.15.0\",\"bitsandbytes\":\"0.50.2\",\"datasets\":\"5.2.0\",\"einops\":\"0.8.2\",\"flash-attn\":\"2.8.3.post2\",\"flash-attn-4\":\"4.0.0b36\",\"liger-kernel\":\"0.8.5\",\"nvidia-cutlass-dsl-libs-cu13\":\"4.8.1\",\"nvidia-ml-py\":\"13.615.71\",\"peft\":\"0.21.2\",\"pip\":\"26.3\",\"safetensors\":\"0.8.0\",\"torch\":\"2.11.0\",\"torchao\":\"0.18.0\",\"transformers\":\"5.17.0\",\"triton\":\"3.6.0\"}" \
      dev.truetag.python="3.11" \
      dev.truetag.silent-faults="Liger-Kernel#272 flash-attention#2260 flash-attention#2324 pytorch#144643 pytorch#169688 pytorch#178871 pytorch#181555 pytorch#183901 pytorch#183986 pytorch#187227 pytorch#190449 pytorch#194976 pytorch#195422 pytorch#197673" \
      dev.truetag.toolkit-cuda="13.0" \
      dev.truetag.torch="2.11.0" \
      dev.truetag.wheel-cuda="13.0" \
      org.opencontainers.image.base.name="debian:bookworm-slim" \
      org.opencontainers.image.description="CUDA training image: torch 2.11.0, CUDA 13.0 wheel, toolkit 13.0" \
      org.opencontainers.image.title="cu130-torch211-devel" \
      org.opencontainers.image.version="a58561ee8ed4"
USER 1001
WORKDIR /workspace
CMD ["bash"]
