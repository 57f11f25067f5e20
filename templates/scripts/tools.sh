# tools.sh PYTHON: uv, by hash, into /opt/tools; from wheels/ where it lies there (a machine with no index).
set -eu
. /run/host/env
"$1" -m venv /opt/tools
if ls /run/wheels/uv-*.whl >/dev/null 2>&1; then
  /opt/tools/bin/pip install --quiet --no-index --find-links /run/wheels --no-deps --require-hashes -r /run/locks/tools.txt
else
  /opt/tools/bin/pip install --quiet --no-cache-dir --no-deps --require-hashes -r /run/locks/tools.txt
fi
