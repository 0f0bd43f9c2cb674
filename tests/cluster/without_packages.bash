#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: without_packages.bash COMMAND...: runs it where neither MPI, HDF5 nor anything else that Holdfast is built with is
# installed, and without a network: in namespaces of its own, over a copy-on-write /usr. Ends with 77 where that is not allowed.
set -euo pipefail
packages=('libopenmpi*' 'openmpi-*' 'libpmix*' 'libhdf5*' 'hdf5-*' libcli11-dev 'libfmt*' 'libspdlog*' nlohmann-json3-dev
    libxxhash-dev 'libjpeg*' libgtest-dev libgmock-dev googletest 'libhwloc*' 'libevent-*' ccache)
unshare --mount --net true 2>/dev/null || {
    echo "SKIP: may not make namespaces (needs root)"
    exit 77
}
files=$(mktemp)
trap 'rm -f "$files"' EXIT
mapfile -t installed < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null |
    sed -n 's/ installed$//p')
dpkg-query -L "${installed[@]}" | sort -u >"$files"
# shellcheck disable=SC2016 # the inner shell expands
unshare --mount --net bash -euc '
    files=$1 upper=$(mktemp -d)
    shift
    mount -t tmpfs tmpfs "$upper"
    mkdir "$upper/usr" "$upper/work"
    mount -t overlay overlay -o "lowerdir=/usr,upperdir=$upper/usr,workdir=$upper/work" /usr 2>/dev/null || {
        echo "SKIP: cannot lay a copy over /usr here"
        exit 77
    }
    while read -r file; do
        [[ $file != /usr/* || (-d $file && ! -L $file) ]] || rm -f "$file"
    done <"$files"
    rm -f /usr/bin/mpi* /usr/lib/*/libmpi* # links that belong to no package
    "$@"' bash "$files" "$@"
