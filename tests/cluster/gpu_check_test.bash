#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: gpu_check_test.bash SOURCE_DIR HOLDFAST PYTHON: scripts/gpu-check as far as it goes without a GPU: what it prepares is
# small, and enough to configure, compile, link and train where no package of Holdfast is installed and no network is.
set -uo pipefail
source_dir=$1 holdfast=$2 python=$3
here=$(dirname "$0")
dir=$(mktemp -d /tmp/holdfast-gpu-check.XXXXXX)
trap 'rm -rf "$dir"' EXIT
failures=0
check=("$source_dir/scripts/gpu-check" "$dir/prepared" --cpu --build "$dir/build" --out "$dir/report" --python "$python")

fail() {
    echo "FAIL: $1" && cat "$dir/output"
    failures=$((failures + 1))
}
# expect CODE TEXT COMMAND...: the code, and the text in what it prints.
expect() {
    local code=0 wanted=$1 text=$2
    shift 2
    "$@" >"$dir/output" 2>&1 || code=$?
    if ((code != wanted)) || ! grep -qF -- "$text" "$dir/output"; then fail "code $code in place of $wanted, or no '$text': $*"; fi
}
result() { # result PART: what the report says of it
    "$python" -c 'import json, sys
print(next(part["result"] for part in json.load(open(sys.argv[1]))["parts"] if part["part"] == sys.argv[2]))' \
        "$dir/report/report.json" "$1"
}

command -v dpkg-query >/dev/null || {
    echo "SKIP: no packages of Debian or Ubuntu here"
    exit 77
}
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' || {
    echo "SKIP: $python has no torch"
    exit 77
}
expect 2 "no folder" "$source_dir/scripts/gpu-check"
expect 2 "unknown flag --fast" "$source_dir/scripts/gpu-check" "$dir/prepared" --fast
expect 2 "no part 'bake'" "${check[@]}" --parts bake
expect 1 "not a folder that scripts/gpu-check --prepare made" "${check[@]}"

expect 0 "is ready" "$source_dir/scripts/gpu-check" --prepare "$dir/prepared" --program "$holdfast"
((failures == 0)) || exit 1
expect 1 "exists already" "$source_dir/scripts/gpu-check" --prepare "$dir/prepared"
# All of CIFAR-10 as JPEGs of quality 75 has 18.5 MB (measured); the sample is part of the repository.
kb=$(($(du -sk --apparent-size "$dir/prepared" | cut -f1) + \
$(du -sk --apparent-size --exclude=.git --exclude='build*' "$source_dir" | cut -f1)))
((kb + 18500 < 60000)) || fail "$kb kB without CIFAR-10: more than 60 MB would have to be carried"

# A machine that is too old, before anything is built.
cp -r "$dir/prepared" "$dir/newer"
sed -i 's/^needs_glibc=.*/needs_glibc=9.99/' "$dir/newer/facts"
expect 1 "need glibc 9.99" "${check[@]/%prepared/newer}"
sed -i 's/^needs_glibc=.*/needs_glibc=2.2/; s/^needs_libstdcxx=.*/needs_libstdcxx=GLIBCXX_9.9/' "$dir/newer/facts"
expect 1 "need GLIBCXX_9.9" "${check[@]/%prepared/newer}"

# A part that fails or hangs is reported, the others go on.
# shellcheck disable=SC2016 # the stand-in expands it
printf '#!/bin/sh\ncase $1 in bench) exec sleep 100 ;; *) echo broken >&2; exit 93 ;; esac\n' >"$dir/broken"
chmod +x "$dir/broken"
expect 1 "failed: tutorial, bench" "${check[@]}" --program "$dir/broken" --limit 3 --parts tutorial,bench
[[ $(result tutorial) == "failed with 93" && $(result bench) == "took too long" ]] || fail "the report says something else"

"$here/without_packages.bash" true >"$dir/output" 2>&1 || {
    cat "$dir/output"
    ((failures > 0)) || exit 77
}
# Configuring links with MPI; compiled are HDF5's folder and its test, because all with LibTorch would take minutes.
cat >"$dir/machine" <<'MACHINE'
set -e
! [ -e /usr/include/CLI/CLI.hpp ] || { echo "packages are still there"; exit 1; }
build=$1 holdfast=$2
shift 2
"$@" --program "$holdfast" --parts configure,resume,bench,pytorch --limit 100
cmake --build "$build" --target test_unit_hdf5_image_file >"$build/log" || { cat "$build/log"; exit 1; }
LD_LIBRARY_PATH=$(echo "$build"/prefix/lib/*-linux-gnu) "$build/tests/test_unit_hdf5_image_file" \
    --gtest_filter='*ReturnsEveryType*:*Compressed*'
MACHINE
expect 0 "PASSED" "$here/without_packages.bash" bash "$dir/machine" "$dir/build" "$holdfast" "${check[@]}"
for part in configure resume bench pytorch; do
    [[ $(result $part) == passed ]] || fail "part $part: $(result $part)"
done
"$python" - "$dir/report/report.json" >"$dir/output" 2>&1 <<'PYTHON' || fail "report.json lacks something"
import json, sys
report = json.load(open(sys.argv[1]))
assert all(report["machine"][key] not in ("", "none") for key in ("cpu", "glibc", "torch", "cmake", "compiler")), report
assert report["prepared"]["commit"] and len(report["prepared"]["packages"]) == 10, report
assert report["bench"][0]["mfu"] > 0 and report["pytorch"]["results"][0]["step_ms"] > 0, report
PYTHON
((failures == 0)) && echo "passed"
exit $((failures > 0))
