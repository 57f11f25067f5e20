# tools.sh PYTHON: uv, by hash, into /opt/tools; from wheels/ where it lies there (a machine with no index).
set -eu
. /run/host/env
"$1" -m venv --without-pip /opt/tools
# pip runs from the wheel that Python keeps for new environments (Debian packages it separately): unpacking it costs a second.
bundled=$("$1" -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')/_bundled
for wheel in /usr/share/python-wheels/pip-*.whl "$bundled"/pip-*.whl; do
  [ ! -e "$wheel" ] || break
done
cp "$wheel" /opt/tools/pip.whl
printf '#!/bin/sh\nexec /opt/tools/bin/python /opt/tools/pip.whl/pip --disable-pip-version-check "$@"\n' >/opt/tools/bin/pip
chmod 755 /opt/tools/bin/pip
if ls /run/wheels/uv-*.whl >/dev/null 2>&1; then
  /opt/tools/bin/pip install --quiet --no-index --find-links /run/wheels --no-deps --require-hashes -r /run/locks/tools.txt
else
  /opt/tools/bin/pip install --quiet --no-cache-dir --no-deps --require-hashes -r /run/locks/tools.txt
fi
