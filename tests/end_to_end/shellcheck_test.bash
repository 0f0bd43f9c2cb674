#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: shellcheck_test.bash SOURCE_DIR: shellcheck over every shell script of the source tree, known by its first line.
set -euo pipefail
command -v shellcheck >/dev/null || { echo "SKIP: no shellcheck"; exit 77; }
cd "$1"
scripts=()
while IFS= read -r -d '' file; do
    first=''
    IFS= read -r first <"$file" 2>/dev/null || true
    [[ $first =~ ^'#!'.*[/\ ](ba)?sh$ || $file == *.bash ]] && scripts+=("$file")
done < <(find .ci benchmarks completions jobs scripts tests -type f -size -100k -print0 2>/dev/null || true)
((${#scripts[@]} >= 5)) || { echo "found only these scripts: ${scripts[*]}" >&2; exit 1; }
shellcheck -x "${scripts[@]}"
echo "${#scripts[@]} scripts pass"
