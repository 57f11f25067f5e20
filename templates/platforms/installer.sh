# installer.sh PYTHON BUILDARCH: uv, by hash, into /opt/tools, of the machine that builds. Statically linked, it runs in an
# image of any platform, and asks PYTHON (by then emulated) which wheels that takes.
set -eu
. /run/host/env
case $2 in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "no installer is locked for a machine of $2" >&2; exit 1 ;;
esac
mkdir -p /opt/tools/bin
# pip runs from the wheel that Python keeps for new environments (Debian packages it separately).
bundled=$("$1" -c 'import ensurepip, os; print(os.path.dirname(ensurepip.__file__))')/_bundled
for wheel in /usr/share/python-wheels/pip-*.whl "$bundled"/pip-*.whl; do
  [ ! -e "$wheel" ] || break
done
if ls /run/wheels/uv-*.whl >/dev/null 2>&1; then set -- "$1" --no-index --find-links /run/wheels; else set -- "$1"; fi
python=$1
shift
"$python" "$wheel/pip" --disable-pip-version-check install --quiet --no-cache-dir --no-deps --require-hashes "$@" \
  --only-binary :all: --platform "musllinux_1_1_$machine" --platform "musllinux_1_2_$machine" --target /opt/tools/uv \
  -r /run/locks/tools.txt
mv /opt/tools/uv/bin/uv /opt/tools/bin/uv
rm -rf /opt/tools/uv
