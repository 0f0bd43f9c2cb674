#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: small_shared_memory_test.bash HOLDFAST: two ranks train the full-width network, whose parameters take 85 MB, where
# /dev/shm has 64 MB as in a Docker container, and the result is that of a run with plenty.
set -euo pipefail
holdfast=$1
unshare --mount true 2>/dev/null || {
    echo "SKIP: may not make a mount namespace (needs root)"
    exit 77
}
dir=$(mktemp -d /tmp/holdfast-shm.XXXXXX)
trap 'rm -rf "$dir"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
launch=(mpirun -np 2 --oversubscribe --bind-to none "$holdfast" train --model resnet34 --data synthetic:64
    --batch-size 4 --threads 1 --seed 3 --epochs 1 --max-steps 2 --limit-test 16)

# shellcheck disable=SC2016 # the inner shell expands
timeout 100 unshare --mount sh -euc '
    mount -t tmpfs -o size=64m tmpfs /dev/shm
    test "$(df -m --output=size /dev/shm | tail -n 1)" -eq 64
    "$@"' sh "${launch[@]}" --run "$dir/small" || {
    echo "FAIL: code $? with 64 MB of /dev/shm" >&2
    exit 1
}
"${launch[@]}" --run "$dir/plenty" >/dev/null
digest() {
    local checkpoints=("$1"/checkpoints/step-*.h5)
    "$holdfast" inspect --json "${checkpoints[-1]}" | sed -n 's/.*"state_digest": *"\([^"]*\)".*/\1/p'
}
[[ -n $(digest "$dir/plenty") && $(digest "$dir/small") == "$(digest "$dir/plenty")" ]] ||
    {
        echo "FAIL: other bytes with 64 MB of /dev/shm" >&2
        exit 1
    }
echo "passed"
