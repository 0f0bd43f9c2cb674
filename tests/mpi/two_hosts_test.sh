#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs MPI tests on two hosts over TCP: two_hosts_test.sh MPIEXEC PROGRAM... Exit 77 (skipped) where the hosts cannot be made.
set -u
mpiexec=$1
shift
hosts=$(cd "$(dirname "$0")/../support/two-hosts" && pwd)
skip() {
    echo "SKIPPED: $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root to make network namespaces"
command -v ip >/dev/null || skip "needs ip (iproute2)"
"$mpiexec" --version | grep -qE "Open(RTE| MPI|PRTE)" || skip "needs Open MPI's mpirun"
trap '"$hosts/up" down' EXIT
"$hosts/up" down
"$hosts/up" || skip "cannot make two network namespaces here"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# As tests/CMakeLists.txt has it on one host: threads that spin while they wait take the cores from those they wait for.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
for program; do
    for slots in 1,1 2,1 2,2 1,3; do
        first=${slots%,*} second=${slots#*,}
        echo "== $(basename "$program") on hosts of $first and $second ranks"
        "$mpiexec" --mca plm_rsh_agent "$hosts/rsh-agent" --mca btl self,vader,tcp --mca btl_tcp_if_include 10.78.0.0/24 \
            --mca oob_tcp_if_include 10.78.0.0/24 --host "10.78.0.1:$first,10.78.0.2:$second" -np $((first + second)) \
            --bind-to none --mca mpi_yield_when_idle 1 -x HOLDFAST_TEST_NUM_HOSTS=2 \
            -x OMP_NUM_THREADS -x OMP_WAIT_POLICY "$program" || exit 1
    done
done
