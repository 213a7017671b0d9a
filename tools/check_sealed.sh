#!/bin/sh
# Fails if an object compiled for one instruction set (larder/cpu/avx2, avx512, avx512_bf16) defines a
# weak symbol: the linker may keep that copy of a shared inline function for the whole program, which
# then stops with an illegal instruction on an older processor. docs/numerics.md, "Sealing".
# Usage: tools/check_sealed.sh BUILD_DIR  (any build without sanitizers)
set -eu
objects=$(find "$1" -path '*/larder/cpu/avx*/*.o')
[ -n "$objects" ] || { echo "check_sealed: no objects of larder/cpu/avx* under $1" >&2; exit 2; }
weak=$(nm -C --defined-only -A $objects | grep -E ' [VvWwu] ' | grep -v ' DW\.ref\.' || true)
if [ -n "$weak" ]; then
  echo "check_sealed: weak symbols in code for one instruction set:" >&2
  echo "$weak" >&2
  exit 1
fi
echo "check_sealed: ok"
