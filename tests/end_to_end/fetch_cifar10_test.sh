#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/fetch-cifar10 on a small archive (sparse files) under a file:// URL: fetch_cifar10_test.sh <path of fetch-cifar10>
# shellcheck disable=SC2317  # the functions are called by check
set -euo pipefail

fetch=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

failed=0
check() {
    if "${@:2}"; then echo "ok: $1"; else
        echo "FAILED: $1"
        failed=1
    fi
}
# refuses <exit status> <text of the only line of stderr> <command...>: and leaves nothing but what was there
refuses() {
    local status=0 before
    before=$(ls -A "$folder/out")
    "${@:3}" >"$folder/stdout" 2>"$folder/stderr" || status=$?
    [[ $status == "$1" && $(grep -c '^fetch-cifar10: ' "$folder/stderr") == 1 && $(tail -n 1 "$folder/stderr") == *"$2"* &&
    $(ls -A "$folder/out") == "$before" ]] || { echo "status $status" && cat "$folder/stderr" && ls -A "$folder/out" && return 1; }
}
is_good() {
    [[ $(find "$folder/out" | wc -l) == 8 ]] && # out, the folder in it, six files
        [[ $(cat "$folder"/out/cifar-10-batches-bin/*.bin | sha256sum) == "$expected" ]]
}
succeeds() { "$@" >"$folder/stdout" 2>"$folder/stderr" || { cat "$folder/stderr" && return 1; }; }
fails() { ! "$@"; }
says() { grep -q "$1" "$folder/stdout"; }

batches=$folder/source/cifar-10-batches-bin
mkdir -p "$batches" "$folder/out"
for name in data_batch_{1..5} test_batch; do
    echo "$name" >"$batches/$name.bin"
    truncate -s 30730000 "$batches/$name.bin"
done
expected=$(cat "$batches"/*.bin | sha256sum)
tar -C "$folder/source" -cf - cifar-10-batches-bin | gzip -1 >"$folder/archive.tar.gz"
export HOLDFAST_CIFAR10_URL="file://$folder/archive.tar.gz"
HOLDFAST_CIFAR10_SHA256=$(sha256sum <"$folder/archive.tar.gz" | cut -d ' ' -f 1)
export HOLDFAST_CIFAR10_SHA256

check "no argument is a usage error" refuses 2 "usage" "$fetch"
check "an option is a usage error" refuses 2 "usage" "$fetch" --help-me
check "an unreachable source is named" refuses 1 "cannot download file://$folder/none" \
    env HOLDFAST_CIFAR10_URL="file://$folder/none" "$fetch" "$folder/out"
check "another archive is refused with both sums" refuses 1 "expected 0123" env HOLDFAST_CIFAR10_SHA256=0123 "$fetch" "$folder/out"
head -c 20000 "$folder/archive.tar.gz" >"$folder/cut.tar.gz"
check "a cut archive is refused with its size" refuses 1 "(20000 bytes)" \
    env HOLDFAST_CIFAR10_URL="file://$folder/cut.tar.gz" "$fetch" "$folder/out"
check "a cut archive is refused even if its sum is expected" refuses 1 "cannot unpack" \
    env HOLDFAST_CIFAR10_URL="file://$folder/cut.tar.gz" \
    HOLDFAST_CIFAR10_SHA256="$(sha256sum <"$folder/cut.tar.gz" | cut -d ' ' -f 1)" "$fetch" "$folder/out"
truncate -s 30729999 "$batches/data_batch_3.bin"
tar -C "$folder/source" -cf - cifar-10-batches-bin | gzip -1 >"$folder/short.tar.gz"
check "an archive with a short file is refused" refuses 1 "six files" env HOLDFAST_CIFAR10_URL="file://$folder/short.tar.gz" \
    HOLDFAST_CIFAR10_SHA256="$(sha256sum <"$folder/short.tar.gz" | cut -d ' ' -f 1)" "$fetch" "$folder/out"

check "it fetches" succeeds "$fetch" "$folder/out"
check "the files are those of the archive, and nothing else is there" is_good
check "a second call succeeds" succeeds env HOLDFAST_CIFAR10_URL="file://$folder/none" "$fetch" "$folder/out"
check "a second call downloads nothing" says "already complete"

rm "$folder/out/cifar-10-batches-bin/test_batch.bin"
check "an incomplete folder is not touched" refuses 1 "not complete" "$fetch" "$folder/out"

rm -r "$folder/out/cifar-10-batches-bin"
"$fetch" "$folder/out" >/dev/null &
first=$!
"$fetch" "$folder/out" >/dev/null &
second=$!
check "of two at once the first succeeds" wait "$first"
check "of two at once the second succeeds" wait "$second"
check "two at once leave one good copy" is_good

# A download that never ends, killed in the middle.
rm -r "$folder/out/cifar-10-batches-bin"
mkfifo "$folder/endless"
HOLDFAST_CIFAR10_URL="file://$folder/endless" setsid "$fetch" "$folder/out" >/dev/null 2>&1 &
running=$!
until compgen -G "$folder/out/.fetch-cifar10-*" >/dev/null; do sleep 0.05; done
kill -TERM -- "-$running"
check "stopped by a signal it fails" fails wait "$running"
check "stopped by a signal it leaves nothing" test -z "$(ls -A "$folder/out")"

exit "$failed"
