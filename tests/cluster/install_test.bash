#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: install_test.bash CMAKE BUILD_DIR VERSION
# cmake --install to a new prefix: the program starts with an empty environment, finds every library, and none of them, nor
# any search path, in the build tree. The modulefile puts exactly that program on PATH, in real Lmod, and takes it away again.
set -euo pipefail
cmake=$1
build_dir=$2
version=$3
dir=$(mktemp -d /tmp/holdfast-install.XXXXXX)
trap 'rm -rf "$dir"' EXIT
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

prefix=$dir/prefix # no space: Lmod cannot read a modulefile below one
"$cmake" --install "$build_dir" --prefix "$prefix" >"$dir/log" || { cat "$dir/log" >&2; fail "cmake --install"; }
for file in cifar10-sample.h5 LICENSE python/holdfast_io.py jobs/{job.bash,train.sbatch,array.sbatch,eval.sbatch}; do
    [[ -s $prefix/share/holdfast/$file ]] || fail "share/holdfast/$file was not installed"
done

program=$prefix/bin/holdfast
[[ $(env -i "$program" --version) == *"$version"* ]] || fail "'env -i holdfast --version' does not say $version"
libraries=$(env -i /usr/bin/ldd "$program")
[[ $libraries != *"not found"* ]] || fail "a library is missing: $libraries"
for text in "$libraries" "$(readelf -d "$program")"; do
    [[ $text != *"$build_dir"* ]] || fail "the installed program depends on the build tree: $text"
done

lmod=/usr/share/lmod/lmod/init/bash
if [[ ! -r $lmod ]]; then
    echo "SKIP: the modulefile part (no $lmod)"
    exit 77
fi
set +u # Lmod's own code reads unset variables
# shellcheck source=/dev/null
source "$lmod"
module use "$prefix/share/modulefiles"
PATH=/usr/local/bin:/usr/bin:/bin # Lmod removes duplicates
path_before=$PATH
module load holdfast || fail "module load holdfast"
[[ $(command -v holdfast) == "$program" ]] || fail "after 'module load', holdfast is $(command -v holdfast)"
module show holdfast 2>&1 | grep -q "$version" || fail "the modulefile does not name version $version"
module unload holdfast || fail "module unload holdfast"
[[ $PATH == "$path_before" ]] || fail "PATH after 'module unload' is $PATH, was $path_before"
echo "passed"
