# debian_toolkit.sh X.Y SUITE: what /usr/local/cuda-X.Y lacks of the nvidia-cuda-toolkit of a Debian suite, whatever suite the
# base is: they are NVIDIA's binaries, which ask for an older glibc. Unpacked in NVIDIA's layout and not installed, so that
# nothing else of that suite comes along (a driver, another gcc), and without the static libraries, which are nine tenths of it.
set -eu
. /run/host/env
home=/usr/local/cuda-$1 work=/tmp/toolkit
# A base that has this compiler keeps it.
[ ! -x "$home/bin/nvcc" ] || exit 0
[ -z "${UV_OFFLINE:-}" ] || { echo "nvcc $1 comes from Debian $2, and an offline build fetches nothing: give a base that has it (--base)" >&2; exit 1; }
mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/root" "$home/licenses"
mirror=${DEBIAN_MIRROR:-}
if [ -z "$mirror" ]; then
  apt-get update -qq
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
fi
echo "deb $mirror $2 main non-free" >"$work/sources.list"
apt() {
  apt-get -qq -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null -o Dir::Cache="$work" \
    -o Dir::State::Lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
cd "$work"
apt update
for package in nvidia-cuda-toolkit nvidia-cuda-dev "libcudart${1%%.*}" libcu++-dev libcub-dev libthrust-dev; do
  apt download "$package"
  dpkg --fsys-tarfile "$package"_*.deb | tar -x -C root --exclude='*.a' --exclude='./usr/share/*' --exclude='*sanitizer*'
  dpkg --fsys-tarfile "$package"_*.deb | tar -x -C root --wildcards --no-anchored 'libcudart*' 'libcudadevrt*' 2>/dev/null || true
  dpkg --fsys-tarfile "$package"_*.deb | tar -xO "./usr/share/doc/$package/copyright" >"$home/licenses/$package.txt" 2>/dev/null \
    || rm -f "$home/licenses/$package.txt"
  rm "$package"_*.deb
done
# What lies there already (ptxas, NVRTC, headers, by the hash of their wheels) stays as it is.
fill() {
  mkdir -p "$2"
  cp -an "$1/." "$2/"
}
own=root/usr/lib/nvidia-cuda-toolkit
rm -f root/usr/bin/nvcc  # Debian's, which looks for its own gcc
cp -a "$own/bin/nvcc" root/usr/bin/nvcc
fill root/usr/bin "$home/bin"
fill "$own/bin/crt" "$home/bin/crt"
mkdir -p "$home/nvvm/bin"
cp -a "$own/bin/cicc" "$home/nvvm/bin/"
fill "$own/libdevice" "$home/nvvm/libdevice"
fill root/usr/include "$home/include"
fill root/usr/lib/x86_64-linux-gnu "$home/lib64"
find "$home" -xtype l -delete
[ -e "$home/lib" ] || ln -s lib64 "$home/lib"
# As in NVIDIA's own toolkit; Debian's names folders of the whole system.
profile() {
  printf '%s\n' 'TOP = $(_HERE_)/..' 'CICC_PATH = $(TOP)/nvvm/bin' 'NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice' \
    'PATH += $(TOP)/nvvm/bin:$(_HERE_):' 'INCLUDES += "-I$(TOP)/include" $(_SPACE_)' \
    'LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs" "-L$(TOP)/lib64"'
}
profile >"$home/bin/nvcc.profile"
rm -rf "$work" /var/lib/apt/lists/* /var/cache/apt/*.bin
"$home/bin/nvcc" --version | grep -q "release $1," || { echo "Debian $2 has another CUDA than $1" >&2; exit 1; }
