#!/bin/sh
# The interpreter that pip and uv install for (PIP_PYTHON, UV_PYTHON): that of an environment in the home, over the image's
# own, made when it is first needed. root without a volume there gets the image's own: so child images are built.
set -eu
here=$(dirname "$0")
. "$here/settings"
if [ "$(id -u)" = 0 ] && ! grep -Eq " $home(/\.cache)? " /proc/self/mountinfo; then
  exec "$image_python" "$@"
fi
if [ ! -x "$additions/bin/python" ] || [ ! -w "$additions/bin" ]; then
  "$image_python" -I -B "$here/create.py" "$additions" || exec "$image_python" "$@"
fi
exec "$additions/bin/python" "$@"
