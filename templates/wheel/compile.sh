# compile.sh PYTHON: /build/src into a wheel in /build/dist, beside record.json. Objects that an earlier run finished come
# from ccache, whose folder outlives the step.
set -eu
. /run/recipe/env
python=$1
export PATH="/usr/lib/ccache:${CUDA_HOME:+$CUDA_HOME/bin:}$(dirname "$python"):$PATH"
if [ -n "${TRUETAG_CPU:-}" ]; then
  mkdir -p /build/host
  for tool in /usr/lib/ccache/*; do cp /run/recipe/host.sh "/build/host/${tool##*/}"; done
  chmod 755 /build/host/*
  export PATH="/build/host:$PATH"
fi
export PYTHONPATH=/build/tools PIP_DISABLE_PIP_VERSION_CHECK=1
export CCACHE_DIR=/var/cache/ccache CCACHE_MAXSIZE=20G CCACHE_COMPILERCHECK=content CCACHE_STATSLOG=/build/ccache.log
export TRUETAG_NVCC_LOG=/build/nvcc.log
/opt/tools/bin/pip --python "$python" wheel --verbose --no-index --no-deps --no-build-isolation --use-pep517 \
  --wheel-dir /build/dist /build/src
exec "$python" -I -S /run/recipe/record.py /build
