# toolkit.sh PYTHON X.Y runtime|devel: the toolkit's wheels, laid out under /usr/local/cuda-X.Y.
# runtime keeps what every CUDA release publishes as wheels: ptxas, libnvvm with libdevice, nvrtc, cudart, the headers.
# The wheels of CUDA 12 have a folder a component (nvidia/cuda_nvcc/...), those of CUDA 13 one for all (nvidia/cu13/...).
set -eu
. /run/host/env
python=$1 home=/usr/local/cuda-$2 extent=$3 unpacked=/tmp/toolkit
# A base that has this toolkit keeps it: the suite checks whether the claimed parts are in it.
[ ! -e "$home" ] || exit 0
export UV_CACHE_DIR=/run/uv UV_LINK_MODE=copy UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never
/run/tools/bin/uv pip install --python "$python" --no-deps --require-hashes --target "$unpacked" -r /run/locks/toolkit.txt
mkdir -p "$home/licenses"
for part in "$unpacked"/nvidia/*/; do
  cp -a "$part." "$home/"
done
for info in "$unpacked"/*.dist-info; do
  find "$info" -iname 'license*' -type f -exec cp {} "$home/licenses/$(basename "$info" .dist-info).txt" \;
done
find "$home" \( -name '__init__.py' -o -name '__pycache__' \) -prune -exec rm -rf {} +
# Compilers look into lib64, and link against names without a version.
[ -d "$home/lib" ] && mv "$home/lib" "$home/lib64" && ln -s lib64 "$home/lib"
# A second nvrtc for old drivers, 105 MB, that nothing here loads.
rm -f "$home"/lib64/lib*.alt.so.*
if [ "$extent" = runtime ]; then
  find "$home/bin" -mindepth 1 ! -name ptxas -delete
  rm -rf "$home/nvvm/bin" "$home"/lib64/*.a
fi
# CUDA 13 keeps libnvvm with the other libraries; tools look for it in nvvm/lib64.
if [ ! -d "$home/nvvm/lib64" ]; then
  mkdir -p "$home/nvvm/lib64"
  for library in "$home"/lib64/libnvvm.so.*; do ln -s "../../lib64/$(basename "$library")" "$home/nvvm/lib64/libnvvm.so"; done
fi
for library in "$home"/lib64/*.so.*; do
  plain=${library%%.so.*}.so
  [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
done
[ ! -d "$home/bin" ] || chmod 755 "$home"/bin/*
[ ! -d "$home/nvvm/bin" ] || chmod 755 "$home"/nvvm/bin/*
rm -rf "$unpacked"
