# tools.sh PYTHON: uv, by hash, into /opt/tools; from wheels/ where it lies there (a machine with no index).
set -eu
. /run/host/env
"$1" -m venv --without-pip /opt/tools
# pip runs from the wheel that Python brings for new environments (Debian keeps it apart): unpacked it would only be slower.
bundled=$("$1" -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')/_bundled
for pip in /usr/share/python-wheels/pip-*.whl "$bundled"/pip-*.whl; do
  [ ! -e "$pip" ] || break
done
if ls /run/wheels/uv-*.whl >/dev/null 2>&1; then from="--no-index --find-links /run/wheels"; else from=--no-cache-dir; fi
# shellcheck disable=SC2086
/opt/tools/bin/python "$pip/pip" install --quiet $from --disable-pip-version-check --no-deps --require-hashes -r /run/locks/tools.txt
