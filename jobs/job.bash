# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the job scripts share. They source it with `program` set and, if SLURM warns them, a trap for USR1 that sets `warned`.
# It decides on `job` (array-safe), `run`, `flags` (of the program) and `launch` (the launcher), and offers:
#   train_until_finished SCRIPT ARGUMENT...   one start of a training job, which puts the job back into the queue where that helps
set -u

if [[ -z ${SLURM_JOB_ID:-} ]]; then
    echo "this is not a SLURM job; submit the script with sbatch, or start 'holdfast supervise' where there is no SLURM" >&2
    exit 2
fi
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} # the plain number may name another task of the array
job=${job:-$SLURM_JOB_ID}
run=${HOLDFAST_RUN:-$SLURM_SUBMIT_DIR/holdfast-run}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}
flags=(--run "$run")
# SLURM_NTASKS is as submitted; the job may have got another number of nodes since.
ranks=0
# shellcheck disable=SC2153 # set by SLURM
for tasks in ${SLURM_TASKS_PER_NODE//,/ }; do # 4(x2),3
    [[ $tasks =~ ^([1-9][0-9]*)(\(x([1-9][0-9]*)\))?$ ]] && ((ranks += BASH_REMATCH[1] * ${BASH_REMATCH[3]:-1}))
done
((ranks > 0)) || ranks=${SLURM_NTASKS:-1} # mpirun takes 0 for as many as it likes
restarts=${SLURM_RESTART_COUNT:-0}
max_restarts=${HOLDFAST_MAX_RESTARTS:-50}
warned=${warned:-}
pid='' # of the launcher

say() { echo "job $job: $*"; }

if ! [[ $max_restarts =~ ^[0-9]{1,9}$ ]]; then
    say "HOLDFAST_MAX_RESTARTS=$max_restarts is no number" >&2
    exit 2
fi
max_restarts=$((10#$max_restarts)) # 08 is no octal number
launcher=mpirun
command -v mpirun >/dev/null || launcher=srun
launcher=${HOLDFAST_LAUNCHER:-$launcher}
case $launcher in
mpirun) launch=(mpirun -np "$ranks" --bind-to none) ;;
srun) launch=(srun --ntasks="$ranks" --mpi=pmix --kill-on-bad-exit=1) ;;
*)
    say "HOLDFAST_LAUNCHER=$launcher is neither mpirun nor srun" >&2
    exit 2
    ;;
esac
# When SLURM sends TERM to everything at once, mpirun by default leaves the ranks one second to save. Not more than 20: mpirun
# (Open MPI 4.1) sleeps twice this time after *every* end with a code other than 0.
export OMPI_MCA_odls_base_sigkill_timeout=${OMPI_MCA_odls_base_sigkill_timeout:-20}
export PRTE_MCA_odls_base_sigkill_timeout=${PRTE_MCA_odls_base_sigkill_timeout:-20}
# srun ignores the job's cores per task unless told.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

say "$ranks ranks on $SLURM_JOB_NODELIST by $launcher, start $((restarts + 1)) of at most $((max_restarts + 1)), run $run"
say "${program:?}: $("$program" --version)"

# When SLURM will end this job, in seconds since 1970; nothing where it has no limit.
end_time() {
    if [[ -n ${SLURM_JOB_END_TIME:-} ]]; then
        echo "$SLURM_JOB_END_TIME" # newer SLURM
    else
        date -d "$(squeue -h -j "$job" -o %e)" +%s
    fi 2>/dev/null
}

# The number of the run's last launch. A launch puts down its own once its ranks are up, handle signals and have the run.
last_writer() { cat "$run/last-writer" 2>/dev/null; }

# The value of "$1" in RUN/outcome.json, which a launch writes last.
outcome() { sed -n 's/^ *"'"$1"'": *\([0-9]*\).*/\1/p' "$run/outcome.json" 2>/dev/null; }

# Asks for a checkpoint and a clean end. A signal before the ranks are up would kill them, and a drain file before the run is
# this launch's would be removed by it, or stop another one; so both wait for that.
ask_to_stop() {
    [[ -n $pid ]] || return # the launch asks when it is there
    (
        trap '' TERM
        while [[ $(last_writer) == "$writer_before" ]] && kill -0 "$pid"; do sleep 1; done
        touch "$run/drain"
        kill -USR1 "$pid"
    ) 2>/dev/null &
}

# The outcome is the last thing a launch writes. A launcher that lingers after it (the sleep above, a lost node) has nothing left
# to do but to use up the time limit.
end_lingering_launcher() {
    trap '' TERM # SLURM sends it to every process of the job
    while kill -0 "$pid" && [[ $(outcome launch) == "$launch_before" ]]; do sleep 1; done
    sleep 10
    kill -KILL "$pid"
}

# go_on_by_hand SCRIPT ARGUMENT...: says how.
go_on_by_hand() {
    local script=$1 options=("--nodes=$SLURM_JOB_NUM_NODES") base=$run
    shift
    [[ -z ${SLURM_NTASKS_PER_NODE:-} ]] || options+=("--ntasks-per-node=$SLURM_NTASKS_PER_NODE")
    if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
        options+=("--array=$SLURM_ARRAY_TASK_ID")
        base=${run%"-$SLURM_ARRAY_TASK_ID"}
    fi
    say "the run goes on from its newest checkpoint if you submit it again, with the options it had:"
    printf 'HOLDFAST_RUN=%q sbatch' "$base"
    printf ' %q' "${options[@]}" "$(dirname "${BASH_SOURCE[0]}")/$script" "$@"
    echo
}

# requeue SCRIPT ARGUMENT...: puts the job back, if that is this start's to do.
requeue() {
    local known
    if ! known=$(scontrol show job "$job"); then
        say "cannot be put back without scontrol"
        go_on_by_hand "$@"
    elif [[ $known != *" Restarts=$restarts "* ]]; then
        say "SLURM has put it back already" # preempted, requeued by a person, or its node is taken for lost
    elif [[ $known != *"JobState=RUNNING "* && $known != *"Reason=TimeLimit "* ]]; then
        say "SLURM is ending it (cancelled, or preempted where that cancels), so it stays ended"
        go_on_by_hand "$@"
    elif ((restarts >= max_restarts)); then
        say "not put back after $restarts restarts (HOLDFAST_MAX_RESTARTS)"
        go_on_by_hand "$@"
    else
        trap '' TERM USR1 # SLURM's answer
        say "goes back into the queue"
        scontrol requeue "$job" || go_on_by_hand "$@"
    fi
}

train_until_finished() {
    local script=$1 code watcher
    shift
    HOLDFAST_END_TIME=$(end_time)
    export HOLDFAST_END_TIME
    trap 'warned=yes; ask_to_stop' USR1 TERM
    writer_before=$(last_writer)
    launch_before=$(outcome launch)
    "${launch[@]}" "$program" train "${flags[@]}" "$@" &
    pid=$!
    [[ -z $warned ]] || ask_to_stop
    end_lingering_launcher 2>/dev/null &
    watcher=$!
    disown "$watcher"
    while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done # a trapped signal ends `wait` early
    wait "$pid"
    code=$?
    kill -KILL "$watcher" 2>/dev/null

    # Codes get lost on the way through launchers, the program's own record does not. A launch that was refused leaves none; what
    # is there then is of the one that has the run.
    if [[ $code != 94 && $(outcome launch) != "$launch_before" ]]; then
        code=$(outcome code)
    elif [[ $code == 0 && $(last_writer) != "$writer_before" ]]; then
        code=1 # srun ends with 0 when its node is taken for lost
    fi
    say "ended with code $code"
    case $code in
    # Finished; or only a person can help; or another launch has the run; or launcher or program cannot be started.
    0 | 2 | 93 | 94 | 126 | 127) ;;
    *)
        if ((restarts == 0 && code < 128)) && [[ $(last_writer) == "$writer_before" ]]; then
            say "its first start did not even get to the run, so starting again is not worth it"
            go_on_by_hand "$script" "$@"
        else
            requeue "$script" "$@"
        fi
        ;;
    esac
    exit "$code"
}
