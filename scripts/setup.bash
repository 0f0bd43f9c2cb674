# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # the sourcing script uses the variables
# What scripts/quickstart and scripts/test share: install what is missing, find or fetch LibTorch, configure, build.
# Sourced, never run. Every step says what it does; every failure ends in one line that says what to try.

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly program=${0##*/}

readonly build_packages=(g++ cmake ninja-build python3-venv ca-certificates openmpi-bin libopenmpi-dev libhdf5-dev
    libcli11-dev libfmt-dev libspdlog-dev nlohmann-json3-dev libxxhash-dev libjpeg-dev)
# slurm-wlm, lmod and iproute2 give the tests a real SLURM, a real module command and two network namespaces; clang has
# libFuzzer; man-db, zsh and tcl are for man pages, completion and modulefiles.
readonly test_packages=(libgtest-dev libgmock-dev ccache clang shellcheck slurm-wlm lmod iproute2 man-db
    zsh tcl shfmt)

# LibTorch comes from PyPI's torch; scripts/requirements/<flavour>.txt pins every version. A larger flavour serves as a
# smaller one. Sizes are those of the wheels for Python 3.11, in GB: download, disk.
base_python=/usr/bin/python3 # the distribution's own: the one python3-venv belongs to
readonly flavours=(cpu cuda test)
declare -rA flavour_size=([cpu]="0.6 1.4" [cuda]="2.7 4.5" [test]="2.8 4.7")

say() { printf '[%s] %s\n' "$program" "$*"; }
die() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 1
}

# install_packages NAME...: one apt-get install of the packages that are missing; nothing at all when none is.
install_packages() {
    local package missing=() as_root=()
    command -v dpkg-query >/dev/null || die "cannot install packages (no dpkg here): supported are Debian 12 and 13 and" \
        "Ubuntu 24.04; elsewhere install the likes of '$*' and build with CMake (docs/installation.md)"
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        say "packages: all $# are installed"
        return
    fi
    command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get: ${missing[*]}"
    if ((EUID != 0)); then
        command -v sudo >/dev/null ||
            die "not root and no sudo; ask an administrator for: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    say "packages: installing ${missing[*]}"
    # An out-of-date or unreachable index matters only if the install fails, so update's own failure is only printed.
    "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with the package lists at hand"
    # With what they depend on; a line of --print-uris is URI, file name, bytes, checksum.
    apt-get install --print-uris -y -qq --no-install-recommends "${missing[@]}" 2>/dev/null |
        awk '{bytes += $3} END {printf "%d packages to download, %.0f MB; apt-get is silent meanwhile\n", NR, bytes / 1e6}' |
        while read -r line; do say "packages: $line"; done || true # what is wrong is told by the install itself
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null || die "apt-get could not install ${missing[*]}; is the network there, and this a supported system?"
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# unpack_package NAME: sets unpacked to a folder with the files of a package that conflicts with one that is installed, or to
# nothing where it cannot be had.
unpack_package() {
    local version folder
    unpacked=
    version=$(apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p')
    [[ $version && $version != '(none)' ]] || return 0
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast/$1-$version
    if [[ ! -e $folder ]]; then
        say "packages: unpacking $1 into $folder"
        rm -rf "$folder.partial"
        mkdir -p "$folder.partial/download"
        (cd "$folder.partial/download" && apt-get download -qq "$1" && dpkg -x ./*.deb ..) >/dev/null 2>&1 || return 0
        mv "$folder.partial" "$folder"
    fi
    unpacked=$folder
}

# Sets with_cuda and puts nvcc on PATH: CUDA is built exactly when a toolkit is there. Decided once, so no flag can disagree.
choose_cuda() {
    [[ -x /usr/local/cuda/bin/nvcc ]] && PATH=$PATH:/usr/local/cuda/bin
    if command -v nvcc >/dev/null; then
        with_cuda=ON
        say "CUDA toolkit: $(command -v nvcc), so HOLDFAST_WITH_CUDA=ON"
    else
        with_cuda=OFF
        say "CUDA toolkit: no nvcc, so HOLDFAST_WITH_CUDA=OFF"
    fi
}

# provide_torch FLAVOUR: sets torch_dir (include/ and lib/ below it) and python (an interpreter with that torch, or empty).
provide_torch() {
    local flavour=$1
    if [[ -n ${HOLDFAST_TORCH:-} ]]; then
        torch_dir=$(realpath -e "$HOLDFAST_TORCH" 2>/dev/null) || die "HOLDFAST_TORCH='$HOLDFAST_TORCH' does not exist"
        [[ -e $torch_dir/lib/libtorch_cpu.so && -d $torch_dir/include/ATen ]] || die "HOLDFAST_TORCH='$HOLDFAST_TORCH' is" \
            "no LibTorch (no lib/libtorch_cpu.so and include/ATen in it); name an unpacked libtorch or site-packages/torch"
        python=$(realpath -s "$torch_dir/../../../../bin/python") # a virtual environment's own, beside its site-packages
        [[ -x $python ]] || python=
        say "LibTorch: $torch_dir (HOLDFAST_TORCH)"
        return
    fi

    local base=$base_python tag cache environment candidate larger=
    [[ -x $base ]] || die "no $base; install python3 and python3-venv"
    tag=$("$base" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
    case $tag in
    cp311 | cp312 | cp313) ;;
    *) die "$base is $("$base" -V); LibTorch is pinned for 3.11 to 3.13; set HOLDFAST_TORCH=DIR to use a torch of yours" ;;
    esac
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/holdfast
    for candidate in "${flavours[@]}"; do
        [[ $candidate == "$flavour" ]] && larger=yes
        environment=$cache/$(environment_name "$candidate" "$tag")
        [[ $larger && -e $environment/.complete ]] && break
        environment=
    done
    if [[ -z $environment ]]; then
        environment=$cache/$(environment_name "$flavour" "$tag")
        install_torch "$base" "$flavour" "$environment"
    fi
    python=$environment/bin/python
    torch_dir=$(echo "$environment"/lib/python3*/site-packages/torch)
    say "LibTorch: $torch_dir"
}

# The name holds a digest of the pinned versions: an environment is never changed once it is complete.
environment_name() {
    local version digest
    version=$(sed -n 's/^torch==//p' "$source_dir/scripts/requirements/cpu.txt")
    digest=$(pinned_versions "$1" | sha256sum)
    printf 'torch-%s-%s-%s-%s\n' "$version" "$2" "$1" "${digest:0:8}"
}

pinned_versions() {
    local flavour
    for flavour in "${flavours[@]}"; do
        grep '==' "$source_dir/scripts/requirements/$flavour.txt"
        [[ $flavour == "$1" ]] && break
    done
}

# install_torch PYTHON FLAVOUR ENVIRONMENT: under a lock, into a temporary name, renamed when whole; so neither a killed
# install nor one of another clone at the same time is ever taken for complete.
install_torch() {
    local base=$1 flavour=$2 environment=$3 sizes partial lock
    partial=$environment.partial
    read -ra sizes <<<"${flavour_size[$flavour]}"
    mkdir -p "${environment%/*}" || die "cannot create ${environment%/*}; set XDG_CACHE_HOME to a folder you can write"
    exec {lock}>"$environment.lock"
    if ! flock -n "$lock"; then
        say "LibTorch: waiting for another install of the same versions"
        flock "$lock"
    fi
    if [[ ! -e $environment/.complete ]]; then
        say "LibTorch: downloading ${sizes[0]} GB from PyPI (torch and what it needs for '$flavour')," \
            "${sizes[1]} GB on disk in $environment"
        rm -rf "$partial"
        "$base" -m venv "$partial" || die "python3 cannot make a virtual environment; install python3-venv"
        "$partial/bin/python" -m pip install --disable-pip-version-check --no-deps --only-binary=:all: \
            -r "$source_dir/scripts/requirements/$flavour.txt" ||
            die "pip could not install LibTorch (see above: no network, disk full?); HOLDFAST_TORCH=DIR uses a torch of yours"
        rm -rf "$environment"
        touch "$partial/.complete"
        mv "$partial" "$environment"
    fi
    exec {lock}>&-
}

# build_jobs: one per core this process may use, and per 2 GB of memory (a file that includes torch takes 1.3 GB).
build_jobs() {
    local cores memory_kb limit jobs
    cores=$(nproc)
    memory_kb=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
    limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)
    if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1024 < memory_kb)); then memory_kb=$((limit / 1024)); fi
    jobs=$((memory_kb / 2000000))
    ((jobs > cores)) && jobs=$cores
    echo $((jobs > 0 ? jobs : 1))
}

# build FOLDER TARGET CMAKE_ARGUMENT...: a Release build in FOLDER below the source folder; two at once take turns.
build() {
    local folder=$source_dir/$1 target=$2 lock
    shift 2
    mkdir -p "$folder"
    exec {lock}>"$folder/.lock"
    flock -n "$lock" || { say "build: waiting for another build in $folder" && flock "$lock"; }
    say "build: configuring $folder"
    cmake -S "$source_dir" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DHOLDFAST_TORCH_ROOT=$torch_dir" "$@" \
        >"$folder/configure.log" 2>&1 || {
        tail -n 30 "$folder/configure.log" >&2
        die "CMake could not configure; the whole output is in $folder/configure.log"
    }
    say "build: compiling target '$target' with $(build_jobs) jobs"
    cmake --build "$folder" --target "$target" -j "$(build_jobs)" || die "the build failed; see the first error above"
    exec {lock}>&-
}

# What mpirun needs everywhere: as root, in containers (no process_vm_readv under Docker's default profile) and with fewer
# cores than ranks. OMPI_MCA_*: Open MPI 4; PRTE_MCA_*: 5.
prepare_mpirun() {
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
}
