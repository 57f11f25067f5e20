# install.sh PYTHON ARGUMENT...: installs into the image's environment, never resolving and never replacing by itself.
set -eu
. /run/host/env
python=$1
shift
export UV_CACHE_DIR=/run/uv UV_LINK_MODE=copy UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
/run/tools/bin/uv pip install --python "$python" --break-system-packages --no-deps --compile-bytecode "$@"
# uv's own lock, in the environment's folder.
rm -f "$(dirname "$(dirname "$python")")/.lock"
