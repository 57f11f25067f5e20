# devel.sh PYTHON X.Y: links into the toolkit what torch's own wheels already hold of it (cublas, cusparse, cufft, ...):
# a compiler finds headers and libraries in one place, and nothing is there twice.
set -eu
home=/usr/local/cuda-$2
own=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu${2%%.*}
for folder in include lib; do
  for file in "$own/$folder"/*; do
    [ -e "$home/$folder/$(basename "$file")" ] || ln -s "$file" "$home/$folder/"
  done
done
for library in "$home"/lib64/*.so.*; do
  plain=${library%%.so.*}.so
  [ -e "$plain" ] || ln -s "$(basename "$library")" "$plain"
done
