#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: SPACK_ROOT=<a Spack 1.0 or newer> [SPACK_INSTALL=yes] spack_real_test.bash SOURCE_DIR
# The recipe in a real Spack: it audits, and concretizes without and with GPUs and with both kinds of HDF5. With SPACK_INSTALL
# it is also built (hours, if Spack has no torch yet) and tested. Without SPACK_ROOT: skipped.
set -euo pipefail
source_dir=$1
[[ -n ${SPACK_ROOT:-} ]] || {
    echo "SKIP: SPACK_ROOT is not set"
    exit 77
}
scope=$(mktemp -d /tmp/holdfast-spack.XXXXXX)
trap 'rm -rf "$scope"' EXIT
printf 'repos:\n  holdfast: "%s"\n' "$source_dir/spack_repo/holdfast" >"$scope/repos.yaml"
spack() { "$SPACK_ROOT/bin/spack" --config-scope "$scope" "$@"; }

spack repo list
spack audit packages holdfast
for spec in 'holdfast ~cuda' 'holdfast +cuda cuda_arch=80' 'holdfast +cuda cuda_arch=80,90' 'holdfast ^hdf5+mpi' 'holdfast ^hdf5~mpi'; do
    echo "== $spec"
    spack spec "$spec"
done
if [[ -n ${SPACK_INSTALL:-} ]]; then
    spack install --test=root 'holdfast ~cuda'
    spack test run holdfast
    spack test results --failed
fi
echo "passed"
