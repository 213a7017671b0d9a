#!/bin/sh
# scripts/run-tests counts what GoogleTest wrote, what crashed, and scripts; a pretended ctest leaves the files.
set -eu
script=$1/scripts/run-tests
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/bin" "$folder/root/build/release"
cat >"$folder/bin/ctest" <<'CTEST'
#!/bin/sh
cp "$FIXTURE"/* "$LARDER_ROOT/build/release/test-results/"
exit "$(cat "$FIXTURE/exit")"
CTEST
chmod +x "$folder/bin/ctest"

fixture() { rm -rf "$folder/fixture"; mkdir "$folder/fixture"; echo "$1" >"$folder/fixture/exit"; }
testcase() {  # testcase NAME STATUS OUTPUT, as ctest writes it
  printf '\t<testcase name="%s" classname="%s" time="0.1" status="%s">\n\t\t<system-out>%s</system-out>\n\t</testcase>\n' \
    "$1" "$1" "$2" "$3" >>"$folder/fixture/ctest.xml"
}
gtest() {  # gtest NAME TEST=RESULT...; a RESULT of FAILED is a completed test with failures
  file=$folder/fixture/$1.json
  shift
  printf '{\n  "tests": %d,\n  "name": "AllTests",\n  "testsuites": [\n    {\n      "name": "Suite",\n      "testsuite": [\n' $# >"$file"
  for pair in "$@"; do
    result=${pair#*=} more=
    if [ "$result" = FAILED ]; then
      result=COMPLETED
      more=',
          "failures": [
            {
              "failure": "file.cc:1\n\"name\": \"trap\", \"result\": \"SKIPPED\"",
              "type": ""
            }
          ]'
    fi
    printf '        {\n          "name": "%s",\n          "file": "f.cc",\n          "line": 3,\n          "status": "RUN",\n          "result": "%s",\n          "timestamp": "x",\n          "time": "0s",\n          "classname": "Suite"%s\n        },\n' \
      "${pair%%=*}" "$result" "$more" >>"$file"
  done
  printf '      ]\n    }\n  ]\n}\n' >>"$file"
}
expect() {  # expect STATUS LAST-LINES
  out=$(FIXTURE=$folder/fixture LARDER_ROOT=$folder/root PATH=$folder/bin:$PATH sh "$script" release 2>&1) && status=0 || status=$?
  [ "$status $out" = "$1 $2" ] || { printf 'wanted: %s\ngot:    %s\n' "$1 $2" "$status $out"; exit 1; }
}

fixture 0
testcase tests_a run ""
testcase tests_b run ""
testcase scripts_x run "fine"
gtest tests_a One=COMPLETED Two=COMPLETED
gtest tests_b Three=COMPLETED
expect 0 "4 passed, 0 failed"

fixture 8
testcase tests_a fail ""
gtest tests_a One=COMPLETED Two=FAILED Three=SKIPPED Four=SUPPRESSED Five=COMPLETED
expect 1 "failed: tests_a: Suite.Two
2 passed, 1 failed, 1 skipped"

fixture 8
testcase tests_a fail "[==========] Running 3 tests
[ RUN      ] Suite.One
[       OK ] Suite.One (0 ms)
[ RUN      ] Suite.Two
[  FAILED  ] Suite.Two (1 ms)
[ RUN      ] Suite.Three
"
testcase tests_b run ""
gtest tests_b Four=COMPLETED
expect 1 "failed: tests_a: Suite.Two
failed: tests_a: crashed or timed out in Suite.Three
2 passed, 2 failed"

# A program that ends itself early, with success, has not run its tests.
fixture 0
testcase tests_a run "[==========] Running 2 tests
[ RUN      ] Suite.One"
expect 1 "failed: tests_a: crashed or timed out in Suite.One
0 passed, 1 failed"

fixture 8
testcase scripts_x fail "a line"
expect 1 "failed: scripts_x: failed
0 passed, 1 failed"

# All tests passed and the program failed on its way out, as with a leak report.
fixture 8
testcase tests_a fail ""
gtest tests_a One=COMPLETED
expect 1 "failed: tests_a: its tests passed, the program did not
1 passed, 1 failed"

fixture 1
expect 1 "failed: ctest itself
0 passed, 1 failed"
