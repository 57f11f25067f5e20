# install.sh PYTHON ARGUMENT...: installs into the image's environment, never resolving and never replacing by itself.
# Where no cache of wheels is mounted, they are unpacked beside the environment and linked into it: nothing is written twice.
set -eu
. /run/host/env
python=$1
shift
home=$(dirname "$(dirname "$python")")
if [ -d /run/uv ]; then cache=/run/uv link=copy; else cache=$home/.wheels link=hardlink; fi
export UV_CACHE_DIR="$cache" UV_LINK_MODE=$link UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
# Whoever runs the image may not write bytecode, so it comes along; not for the packages' own tests, a fifth of all code.
# Each folder under one name: bytecode holds its source's path.
noted() {
  "$python" -c '
import os, sysconfig
folders = filter(os.path.isdir, map(sysconfig.get_path, ("platlib", "purelib")))
for folder in {os.path.realpath(folder): folder for folder in folders}.values():
    print(folder)
' >/run/packages
  # No pipes: of those, only the last command's failure ends the step.
  while read -r packages; do
    find "$packages" -name '*.py' ! -path '*/test/*' ! -path '*/tests/*' -printf '%C@ %p\0'
  done </run/packages >/run/sources
  LC_ALL=C sort -z /run/sources >"$1"
}
noted /run/sources.before
/run/tools/bin/uv pip install --python "$python" --break-system-packages --no-deps "$@"
# The second is uv's own lock.
rm -rf "$home/.wheels" "$home/.lock"
# What bears another time of change than before is what was installed.
noted /run/sources.after
LC_ALL=C comm -z -13 /run/sources.before /run/sources.after >/run/sources.changed
cut -z -d ' ' -f 2- /run/sources.changed >/run/sources
"$python" -I -S -B /run/scripts/compile.py </run/sources
