#!/bin/sh
# scripts/check-layers finds each fault of a small bad tree, with file and line, and nothing in a good one.
set -eu
check=$1/scripts/check-layers
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

put() {  # put FILE LINE...
  mkdir -p "$tree/$(dirname "$1")"
  file=$1
  shift
  case $file in *.h) set -- "#pragma once" "$@" ;; esac
  printf '%s\n' "$@" >"$tree/$file"
}
finds() {
  if out=$("$check" "$tree"); then echo "not found: $1"; exit 1; fi
  [ "$out" = "$1" ] || { printf 'wanted: %s\ngot:    %s\n' "$1" "$out"; exit 1; }
}
clean() {
  if ! out=$("$check" "$tree"); then printf 'a good tree was refused:\n%s\n' "$out"; exit 1; fi
}

put larder/base/a.h '#include <string>' '#include <nlohmann/json.hpp>'
put larder/tensor/t.h '#include "larder/base/a.h"'
put larder/cache/c.h '#include "larder/tensor/t.h"'
put larder/attention/a.h '#include "larder/tensor/t.h"'
put larder/cpu/avx2/k.cc '#include "larder/cpu/k.h"' '#include "larder/tensor/t.h"'
put larder/cpu/k.h ''
put larder/text/x.h '#include "larder/base/a.h"'
put larder/text/x.cc '#include "larder/text/x.h"' '#include <pcre2.h>'
put larder/models/m.h '#include "larder/cache/c.h"' '#include "larder/attention/a.h"'
put larder/generate/g.h '#include "larder/models/m.h"' '#include "larder/text/x.h"'
put tools/main.cc '#include "larder/generate/g.h"' '#include <CLI/CLI.hpp>'
put tests/cpu/k_test.cc '#include "larder/cpu/k.h"' '#include <nlohmann/json.hpp>' '#include <gtest/gtest.h>'
clean

bad() {  # bad FILE 'INCLUDE' RULE: line 2 of FILE breaks RULE
  keep=$tree.keep
  mkdir -p "$tree/$(dirname "$1")"
  had=
  if [ -f "$tree/$1" ]; then had=1; cp "$tree/$1" "$keep"; fi
  printf '%s\n' '#pragma once' "$2" >"$tree/$1"
  finds "$1:2: $3"
  rm "$tree/$1"
  [ -z "$had" ] || mv "$keep" "$tree/$1"
}
bad larder/cache/bad.h '#include "larder/attention/a.h"' 'cache may include base tensor cache only: larder/attention/a.h'
bad larder/attention/bad.cc '#include "larder/cache/c.h"' 'attention may include base tensor attention only: larder/cache/c.h'
bad larder/text/bad.h '#  include "larder/tensor/t.h"' 'text may include base text only: larder/tensor/t.h'
bad larder/base/bad.h '#include <larder/tensor/t.h>' 'base may include base only: larder/tensor/t.h'
bad larder/models/bad.h '#include "larder/generate/g.h"' \
  'models may include base tensor cache attention models only: larder/generate/g.h'
bad larder/models/bad.cc '#include "larder/cpu/k.h"' 'nobody includes larder/cpu, the linker joins it: larder/cpu/k.h'
bad tools/bad.cc '#include "larder/cpu/k.h"' 'nobody includes larder/cpu, the linker joins it: larder/cpu/k.h'
bad tools/bad.cc '#include "tests/support/s.h"' 'only tests/ may include tests/: tests/support/s.h'
bad larder/generate/bad.cc '#include "tools/flags.h"' 'larder/ may not include tools/: tools/flags.h'
bad larder/cache/bad.cc '#include "c.h"' 'includes are spelled from the root, "larder/x/y.h": c.h'
bad larder/cache/bad.cc '#include <nlohmann/json.hpp>' '<nlohmann/json.hpp> is used in larder/base/ only'
bad larder/models/bad.cc '#include <Eigen/Dense>' '<Eigen/Dense> is used in tests/ only'

put larder/base/a.h '#include "larder/base/b.h"'
put larder/base/b.h '' '#include "larder/base/a.h"'
out=$("$check" "$tree" || true)
case $out in
  "larder/base/b.h:3: includes go in a circle: larder/base/a.h" | "larder/base/a.h:2: includes go in a circle: larder/base/b.h") ;;
  *) echo "a circle was not found: $out"; exit 1 ;;
esac
rm "$tree/larder/base/b.h"
put larder/base/a.h ''

mkdir "$tree/larder/misc"
echo >"$tree/larder/misc/x.cc"
finds 'larder/misc/x.cc:1: larder/misc is no layer of the picture'
rm "$tree/larder/misc/x.cc"

echo >"$tree/larder/base/bare.h"
finds 'larder/base/bare.h:1: a header begins with #pragma once'
rm "$tree/larder/base/bare.h"

yes '' | head -n 400 >"$tree/larder/base/long.cc"
clean
echo >>"$tree/larder/base/long.cc"
finds 'larder/base/long.cc:401: a file stops at 400 lines; split it'
rm "$tree/larder/base/long.cc"

# A header that relies on what its includer includes.
put larder/base/alone.h 'inline std::string word() { return {}; }'
if out=$("$check" --headers "$tree" 2>/dev/null); then echo "a header that cannot stand alone passed"; exit 1; fi
case $out in *"larder/base/alone.h:1: the header does not compile alone"*) ;; *) echo "got: $out"; exit 1 ;; esac
