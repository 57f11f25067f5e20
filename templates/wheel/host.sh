#!/bin/sh
# Stands in for gcc and g++ in a builder: code for processors of TRUETAG_CPU, where a setup.py asks for the one at hand. What it
# would compile here for AVX-512 would die of SIGILL on others. Then ccache calls the real compiler.
for word; do
  shift
  case $word in
    -march=native) word=-march=$TRUETAG_CPU ;;
    -mtune=native) continue ;;
    -mavx512* | -mprefer-vector-width=512) [ "$TRUETAG_CPU" = x86-64-v4 ] || continue ;;
    # DeepSpeed's name for the width of its vectors.
    -D__AVX512__) [ "$TRUETAG_CPU" != x86-64-v3 ] || word=-D__AVX256__ ;;
  esac
  set -- "$@" "$word"
done
# ccache takes the first compiler on PATH that is not itself, and must not find this one again.
own=${0%/*} rest=:$PATH:
while [ "$rest" != "${rest#*":$own:"}" ]; do rest=${rest%%":$own:"*}:${rest#*":$own:"}; done
rest=${rest#:}
export PATH="${rest%:}"
exec "${TRUETAG_CCACHE:-/usr/lib/ccache}/${0##*/}" "$@"
