#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: format_test.bash SOURCE_DIR [CLANG_FORMAT]: every C++ and CUDA file is as clang-format 14 writes it; another version
# has another opinion. To repair: clang-format-14 -i FILE.
set -euo pipefail
cd "$1"
for tool in "${2:-}" clang-format-14 clang-format; do
    [[ -n $tool && $("$tool" --version 2>/dev/null || true) == *" 14."* ]] && break
    tool=''
done
[[ -n $tool ]] || {
    echo "SKIP: no clang-format 14"
    exit 77
}
mapfile -t files < <(find src tests benchmarks -name '*.cpp' -o -name '*.hpp' -o -name '*.cu')
((${#files[@]} >= 20)) || {
    echo "found only ${#files[@]} files" >&2
    exit 1
}
"$tool" --dry-run -Werror "${files[@]}"
echo "${#files[@]} files pass"
