#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: shellcheck_test.bash SOURCE_DIR: shellcheck and shfmt over every shell script of the source tree, known by its first line.
set -euo pipefail
for tool in shellcheck shfmt; do
    command -v "$tool" >/dev/null || {
        echo "SKIP: no $tool"
        exit 77
    }
done
cd "$1"
scripts=()
while IFS= read -r -d '' file; do
    first=''
    IFS= read -r first <"$file" 2>/dev/null || true
    [[ $first =~ ^'#!'.*[/\ ](ba)?sh$ || $file == *.bash ]] && scripts+=("$file")
done < <(find .ci benchmarks completions jobs scripts tests -type f -size -100k -print0 2>/dev/null || true)
((${#scripts[@]} >= 5)) || {
    echo "found only these scripts: ${scripts[*]}" >&2
    exit 1
}
shellcheck -x "${scripts[@]}"
printf '%s\0' "${scripts[@]}" | grep -zv '^completions/' | xargs -0 shfmt -i 4 -d # those are partly generated
echo "${#scripts[@]} scripts pass"
