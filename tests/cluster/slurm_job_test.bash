#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: slurm_job_test.bash HOLDFAST SOURCE_DIR
# jobs/train.sbatch on a real SLURM cluster of two nodes: warned in the middle of training it saves, ends with 75, requeues
# itself, resumes and finishes with the bytes of a run that nobody disturbed. A cancelled job stays cancelled.
set -uo pipefail
holdfast=$1
source_dir=$2
# shellcheck source-path=SCRIPTDIR/../.. source=tests/support/slurm_lab.bash
source "$source_dir/tests/support/slurm_lab.bash"

dir=$(mktemp -d /tmp/holdfast-slurm.XXXXXX)
trap 'slurm_lab_down "$dir/lab"; rm -rf "$dir"' EXIT
fail() {
    echo "FAIL: $*" >&2
    tail -n 40 "$dir"/*.out >&2
    exit 1
}
# wait_until SECONDS WHAT COMMAND...
wait_until() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@"; do
        ((SECONDS < deadline)) || fail "waited in vain until $what"
        sleep 0.2
    done
}
checkpoints_of() { find "$1/checkpoints" -name 'step-*.h5' 2>/dev/null | wc -l; }
has_checkpoints() { (($(checkpoints_of "$1") >= $2)); }
job_said() { grep -q -- "$2" "$1" 2>/dev/null; }
job_is() { [[ $(slurm_job_state "$1") == "$2" ]]; }

slurm_lab_up "$dir/lab"
export OMP_NUM_THREADS=1
PATH=$(dirname "$holdfast"):$PATH
settings=(--data synthetic:256 --width 4 --model resnet18 --batch-size 8 --replicas 2 --threads 1 --seed 7 --epochs 25)
submit() { # submit NAME, from another folder than the script's and the run's: SLURM runs a copy of the script
    (cd / && HOLDFAST_RUN=$dir/$1 sbatch --parsable --nodes=2 --ntasks-per-node=1 --output="$dir/$1.out" \
        "$source_dir/jobs/train.sbatch" "${settings[@]}")
}

job=$(submit warned) || fail "sbatch refused the script"
wait_until 120 "the first epoch is saved" has_checkpoints "$dir/warned" 2
scancel --batch --signal=USR1 "$job"
wait_until 60 "the job ended with 75" job_said "$dir/warned.out" 'ended with code 75'
wait_until 120 "the job started again" job_said "$dir/warned.out" 'start 2'
wait_until 200 "the job finished" job_said "$dir/warned.out" 'ended with code 0'
job_said "$dir/warned.out" 'Resuming training from snapshot' || fail "the second start did not resume"
wait_until 30 "SLURM counts the job as completed" job_is "$job" COMPLETED

env OMPI_MCA_btl=self,vader mpirun -np 2 --oversubscribe --bind-to none "$holdfast" train --run "$dir/undisturbed" \
    "${settings[@]}" >"$dir/undisturbed.out" 2>&1 || fail "the undisturbed run failed"
digest() {
    local checkpoints=("$1"/checkpoints/step-*.h5)
    "$holdfast" inspect --json "${checkpoints[-1]}" | sed -n 's/.*"state_digest": *"\([^"]*\)".*/\1/p'
}
[[ -n $(digest "$dir/undisturbed") ]] || fail "no state_digest in the undisturbed run"
[[ $(digest "$dir/warned") == "$(digest "$dir/undisturbed")" ]] ||
    fail "the requeued job ended with other bytes: $(digest "$dir/warned") and $(digest "$dir/undisturbed")"

job=$(submit cancelled)
wait_until 120 "the first epoch is saved" has_checkpoints "$dir/cancelled" 2
scancel "$job"
wait_until 60 "the cancelled job ended" job_said "$dir/cancelled.out" 'SLURM is ending this job'
wait_until 30 "SLURM counts the job as cancelled" job_is "$job" CANCELLED
echo "passed"
