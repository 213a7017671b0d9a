#!/bin/sh
# Installs larder's libraries into a folder that goes away, builds examples/embed from there alone, and runs it on
# the toy model: what the README says of embedding is true.  embed.sh SOURCE BUILD CXX
set -eu
source=$1 build=$2 cxx=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/installed" --component sdk >/dev/null
# Copied, so that no header of the source tree can be found beside it.
cp -r "$source/examples/embed" "$folder/embed"
cmake -G Ninja -S "$folder/embed" -B "$folder/build" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$folder/installed"
cmake --build "$folder/build"
"$folder/build/embed" "$source/models/toy/toy-llama" >"$folder/text"
cat "$folder/text"
[ -s "$folder/text" ] || { echo "embed.sh: the example wrote nothing" >&2; exit 1; }
