# shim.sh HOME: /build/cuda is the toolkit at HOME, with our nvcc in place of its own; and Python says which GPU
# to compile for without having one.
set -eu
mkdir -p /build/cuda/bin
for part in "$1"/*; do
  [ "$(basename "$part")" = bin ] || ln -s "$part" /build/cuda/
done
for tool in "$1"/bin/*; do
  [ "$(basename "$tool")" = nvcc ] || ln -s "$tool" /build/cuda/bin/
done
cp /run/recipe/nvcc.py /build/cuda/bin/nvcc
chmod 755 /build/cuda/bin/nvcc
cp /run/recipe/sitecustomize.py /build/tools/
"$1/bin/nvcc" --version >/build/nvcc.version
