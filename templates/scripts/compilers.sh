# compilers.sh PYTHON NAME:PACKAGE...: what a foreign base lacks of gcc and g++, Python.h (Triton and torch.compile use
# them at run time), venv, which the installer needs, and of these programs and libraries (lib*).
set -eu
. /run/host/env
python=$1
shift
has_headers='import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
lacking=
{ command -v gcc && command -v g++; } >/dev/null || lacking="gcc g++ libc6-dev"
"$python" -c "$has_headers" || lacking="$lacking python3-dev"
"$python" -c 'import ensurepip, venv' 2>/dev/null || lacking="$lacking python3-venv"
tools=
for tool in "$@"; do
  case $tool in
    lib*) ldconfig -p | grep -q "^[[:space:]]*${tool%%:*} " || tools="$tools ${tool#*:}" ;;
    *) command -v "${tool%%:*}" >/dev/null || tools="$tools ${tool#*:}" ;;
  esac
done
if command -v apt-get >/dev/null; then
  lacking="$lacking$tools"
elif [ -n "$tools" ]; then
  echo "this base has no apt-get: the image goes without$tools" >&2
fi
if [ -n "$lacking" ]; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # shellcheck disable=SC2086  # several packages
  apt-get install -qq --no-install-recommends $lacking
  rm -f /var/cache/ldconfig/aux-cache
fi
"$python" -c "$has_headers" || { echo "the headers (Python.h) of this base's $python are missing, and python3-dev has others" >&2; exit 1; }
