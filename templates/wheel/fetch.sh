# fetch.sh PYTHON: the source, by hash, into /build/src. pip asks setup.py for its name before it hands the file over.
set -eu
. /run/host/env
. /run/recipe/env
export PYTHONPATH=/build/tools PATH="$(dirname "$1"):$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
mkdir -p /build/sdist /build/src
if ls /run/recipe/*.tar.gz >/dev/null 2>&1; then
  cp /run/recipe/*.tar.gz /build/sdist/
  (cd /build/sdist && sed -n 's|.*--hash=sha256:\([0-9a-f]*\)|\1|p' /run/recipe/source.txt | sed "s|\$|  $(ls)|" | sha256sum -c --quiet)
else
  /opt/tools/bin/pip --python "$1" download --quiet --no-cache-dir --no-deps --no-build-isolation --no-binary :all: \
    --require-hashes -r /run/recipe/source.txt --dest /build/sdist
fi
tar -xzf /build/sdist/*.tar.gz -C /build/src --strip-components=1 --no-same-owner
[ ! -f /run/recipe/source.patch ] || (cd /build/src && git apply -p1 /run/recipe/source.patch)
