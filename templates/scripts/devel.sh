# devel.sh PYTHON X.Y: links into the toolkit what torch's own wheels already hold of it (cublas, cusparse, cufft, ...):
# a compiler finds headers and libraries in one place, and nothing is there twice.
set -eu
home=/usr/local/cuda-$2
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
# The wheels of CUDA 12 have a folder a component, those of CUDA 13 one for all. cuDNN and NCCL are no part of a toolkit.
if [ -d "$packages/cu${2%%.*}" ]; then
  parts=cu${2%%.*}
else
  parts="cublas cuda_cupti cufft curand cusolver cusparse nvjitlink nvtx"
fi
for part in $parts; do
  for folder in include lib; do
    for file in "$packages/$part/$folder"/*; do
      case ${file##*/} in __*__*) continue ;; esac
      [ -e "$home/$folder/${file##*/}" ] || [ ! -e "$file" ] || ln -s "$file" "$home/$folder/"
    done
  done
done
for library in "$home"/lib64/*.so.*; do
  plain=${library%%.so.*}.so
  [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
done
