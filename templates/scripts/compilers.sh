# compilers.sh PYTHON: what a foreign base lacks of gcc and g++, Python.h (Triton and torch.compile use them at run time)
# and venv, which the installer needs.
set -eu
. /run/host/env
has_headers='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
lacking=
{ command -v gcc && command -v g++; } >/dev/null || lacking="gcc g++ libc6-dev"
"$1" -c "$has_headers" || lacking="$lacking python3-dev"
"$1" -c 'import ensurepip, venv' 2>/dev/null || lacking="$lacking python3-venv"
if [ -n "$lacking" ]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2086  # several packages
  apt-get install -qq --no-install-recommends $lacking
  rm -f /var/cache/ldconfig/aux-cache
fi
"$1" -c "$has_headers" || { echo "the headers (Python.h) of this base's $1 are missing, and python3-dev has others" >&2; exit 1; }
