# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A real SLURM cluster for one test: two virtual nodes on this host, run by this test's own daemons, gone with the test.
#   slurm_lab_up DIR    starts it (root only) and exports SLURM_CONF
#   slurm_lab_down DIR  stops the daemons by their pid files
#   slurm_job_state ID  one word, e.g. RUNNING
# Exits 77 (CTest: skipped) where SLURM or root is missing.

slurm_lab_up() {
    local dir=$1 port=$((20000 + $$ * 3 % 10000)) node # three ports of our own, so that tests in other clones do not meet
    ((EUID == 0)) || { echo "SKIP: the SLURM daemons need root"; exit 77; }
    PATH=$PATH:/usr/sbin:/sbin
    command -v slurmctld slurmd sbatch >/dev/null || { echo "SKIP: no slurmctld, slurmd, sbatch (slurm-wlm)"; exit 77; }
    mkdir -p "$dir"/{state,spool.n1,spool.n2,tmp/n1,tmp/n2}
    export SLURM_CONF=$dir/slurm.conf
    sed -e "s|@DIR@|$dir|g" -e "s|@HOST@|$(hostname -s)|g" -e "s|@PORT0@|$port|" -e "s|@PORT1@|$((port + 1))|" \
        -e "s|@PORT2@|$((port + 2))|" "$(dirname "${BASH_SOURCE[0]}")/slurm.conf.in" >"$SLURM_CONF"
    slurmctld -c -f "$SLURM_CONF"
    for node in n1 n2; do slurmd -N "$node" -f "$SLURM_CONF"; done
    for _ in {1..60}; do
        [[ $(sinfo -h -p debug -o %t 2>/dev/null) == idle ]] && break
        sleep 0.5
    done
    [[ $(sinfo -h -p debug -o %t) == idle ]] || { cat "$dir"/slurm*.log >&2; echo "the SLURM nodes never became idle" >&2; exit 1; }
    # One host plays two nodes: Open MPI's shared-memory transport must not believe the host names.
    export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
}

slurm_lab_down() {
    local dir=$1 file
    scancel --quiet --user=root 2>/dev/null || true
    for file in "$dir"/slurmd.*.pid "$dir"/slurmctld.pid; do
        [[ -e $file ]] && kill "$(<"$file")" 2>/dev/null
    done
    for _ in {1..40}; do
        compgen -G "$dir/slurm*.pid" >/dev/null || break # a daemon removes its own as it ends
        sleep 0.25
    done
}

slurm_job_state() { scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
