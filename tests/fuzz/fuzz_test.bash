#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: fuzz_test.bash checkpoint|packed_images|cifar10 BUILD SECONDS [CORPUS]: changes files for SECONDS and gives them to the reader.
# A crash, a hang of 10 s or 1 GB of memory fails and leaves its file in BUILD/fuzz/findings. CORPUS keeps what was found to
# reach new code; without it each run starts from the seeds.
set -euo pipefail
reader=$1 build=$(realpath "$2") seconds=$3
fuzzer=$build/fuzz/bin/fuzz_$reader
[[ -x $fuzzer ]] || {
    echo "SKIP: no $fuzzer (clang++ is needed to build it; apt-get install clang)"
    exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$build/fuzz/findings" "$scratch/corpus" "$scratch/seeds"
"$build/tests/fuzz_seeds" "$scratch/seeds"
# HDF5's own leaks after a refused file are not ours to judge. Its name heap makes inputs of some kilobytes the smallest.
cd "$scratch"
ASAN_OPTIONS=detect_leaks=0 "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -max_len=65536 \
    -artifact_prefix="$build/fuzz/findings/$reader-" "${4:-$scratch/corpus}" "$scratch/seeds/$reader" >"$scratch/log" 2>&1 || {
    tail -n 60 "$scratch/log"
    echo "the file that did it is in $build/fuzz/findings"
    exit 1
}
grep -E '^stat::(number_of_executed_units|new_units_added|peak_rss_mb)' "$scratch/log"
executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$scratch/log")
((executed > 10)) || {
    echo "only $executed inputs were tried"
    exit 1
}
