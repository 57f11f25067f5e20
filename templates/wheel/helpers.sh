# helpers.sh PYTHON: ccache and ninja from Debian, where the base has none.
set -eu
. /run/host/env
lacking=
{ command -v ccache && [ -d /usr/lib/ccache ]; } >/dev/null || lacking=" ccache"
command -v ninja >/dev/null || lacking="$lacking ninja-build"
[ -n "$lacking" ] || exit 0
[ -z "${UV_OFFLINE:-}" ] || { echo "this base lacks$lacking, and an offline build fetches nothing: install them in it" >&2; exit 1; }
# shellcheck disable=SC2086  # several packages
exec sh /run/scripts/debian.sh "$1" $lacking
