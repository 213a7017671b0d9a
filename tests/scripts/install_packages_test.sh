#!/bin/sh
# scripts/install-packages against pretended dpkg-query, apt-get, sudo and id: what it runs, and what it prints.
set -eu
script=$1/scripts/install-packages
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
for tool in sh awk cat dirname env mktemp rm; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done

pretend() {  # pretend NAME 'BODY'
  printf '#!/bin/sh\n%s\n' "$2" >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
# shellcheck disable=SC2016  # the pretended commands expand these
pretend dpkg-query 'for last; do :; done; case " $HAVE " in *" $last "*) printf installed ;; *) exit 1 ;; esac'
# shellcheck disable=SC2016
pretend apt-get 'echo "$DEBIAN_FRONTEND apt-get $*" >>"$CALLS"; [ "$*" != "$FAIL" ]'
# shellcheck disable=SC2016
pretend sudo 'echo sudo >>"$CALLS"; exec "$@"'
# shellcheck disable=SC2016
pretend id 'echo "$WHO"'
printf '%s\n' '# a comment' 'build one why' 'build two why' 'test three why' >"$folder/packages.txt"

run() {  # run HAVE WHO SECTION...: sets out and status
  : >"$folder/calls"
  have=$1 who=$2
  shift 2
  out=$(env -i PATH="$folder/bin" HAVE="$have" WHO="$who" FAIL="${fail:-}" CALLS="$folder/calls" \
    LARDER_PACKAGES="$folder/packages.txt" sh "$script" "$@" 2>&1) && status=0 || status=$?
}
expect() {  # expect WHAT GOT WANTED
  [ "$2" = "$3" ] || { printf '%s\nwanted: %s\ngot:    %s\n' "$1" "$3" "$2"; exit 1; }
}

run "one two three" 0 build test
expect "nothing missing: silent" "$status$out$(cat "$folder/calls")" 0

run "two" 0 build test
expect "says what it installs" "$out" "Installing Debian packages: one three"
expect "as root, without sudo" "$(cat "$folder/calls")" "noninteractive apt-get update
noninteractive apt-get install -y --no-install-recommends one three"

run "one" 1000 build
expect "not root: with sudo" "$(cat "$folder/calls")" "sudo
noninteractive apt-get update
sudo
noninteractive apt-get install -y --no-install-recommends two"

fail="update"
run "" 0 test
expect "a failed update fails" "$status" 1
fail=

rm "$folder/bin/sudo"
run "" 1000 build
expect "no sudo: one line" "$status $out" \
  "1 install-packages: not root, and sudo is not here; install these with your package manager (Debian names): one two"
rm "$folder/bin/apt-get"
run "" 0 test
expect "no apt-get: one line" "$status $out" \
  "1 install-packages: apt-get is not here; install these with your package manager (Debian names): three"
run "one two" 0 build
expect "no apt-get, but nothing missing" "$status$out" 0
run "" 0 nonsense
expect "an unknown section" "$status" 2
