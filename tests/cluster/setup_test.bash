#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: setup_test.bash SOURCE_DIR: what scripts/setup.bash does on machines where something is missing. Stand-ins for
# dpkg-query, apt-get and Python take the place of real ones; nothing is installed.
set -uo pipefail
source_dir=$1
dir=$(mktemp -d /tmp/holdfast-setup.XXXXXX)
trap 'rm -rf "$dir"' EXIT
export HOME=$dir XDG_CACHE_HOME=$dir/cache
unset HOLDFAST_TORCH
failures=0

# expect CODE PATTERN NAME: the code and the one line on stderr of the shell text on stdin, run after sourcing setup.bash.
expect() {
    local code=0 lines
    bash -c 'set -euo pipefail; source "$1/scripts/setup.bash"; eval "$(</dev/stdin)"' quickstart "$source_dir" \
        >"$dir/out" 2>"$dir/err" || code=$?
    lines=$(wc -l <"$dir/err")
    if ((code != $1)) || { ((code == 1)) && { ((lines != 1)) || ! grep -q -- "$2" "$dir/err"; }; } ||
        { ((code == 0)) && ! grep -q -- "$2" "$dir/out"; }; then
        echo "FAIL: $3: code $code, output and errors:" && cat "$dir/out" "$dir/err"
        failures=$((failures + 1))
    fi
}
stand_in() { # stand_in NAME BODY
    mkdir -p "$dir/bin"
    printf '#!/bin/bash\n%s\n' "$2" >"$dir/bin/$1"
    chmod +x "$dir/bin/$1"
}
# shellcheck disable=SC2016 # the stand-in expands it
stand_in dpkg-query 'case "${@: -1}" in have-*) echo -n installed ;; *) exit 1 ;; esac'
stand_in apt-get "[[ \$* == *print-uris* ]] && printf '%s\n' \"'http://a' a_1.deb 1500000 MD5Sum:0\" \"'http://b' b_1.deb 600000 MD5Sum:0\" && exit
echo \"\$*\" >>'$dir/apt.log'; [[ \$* != *refused* ]]"
PATH=$dir/bin:$PATH

expect 0 'all 2 are installed' "nothing to install" <<<'install_packages have-a have-b'
[[ ! -e $dir/apt.log ]] || {
    echo "FAIL: apt-get was called for nothing"
    failures=$((failures + 1))
}
if ((EUID == 0)); then
    expect 0 'installing new-a new-b' "two packages" <<<'install_packages have-a new-a new-b'
    grep -q 'packages: 2 packages to download, 2 MB' "$dir/out" || {
        echo "FAIL: the size of the download is not told:" && cat "$dir/out"
        failures=$((failures + 1))
    }
    [[ $(grep -c ' install \|^install' "$dir/apt.log") == 1 ]] || {
        echo "FAIL: not one apt-get install"
        failures=$((failures + 1))
    }
    expect 1 'apt-get could not install refused' "apt-get fails" <<<'install_packages refused'
else
    expect 1 'no sudo; ask an administrator for: apt-get install new-a' "not root" <<<'PATH='"$dir"'/bin; install_packages new-a'
fi
expect 1 'new-a' "no apt-get" <<<"mkdir -p '$dir/only'; ln -sf '$dir/bin/dpkg-query' '$dir/only'; PATH=$dir/only install_packages new-a"
expect 1 'supported are Debian' "no dpkg" <<<"PATH=$dir/none install_packages new-a"
expect 1 "HOLDFAST_TORCH='/nowhere' does not exist" "HOLDFAST_TORCH is missing" <<<'HOLDFAST_TORCH=/nowhere provide_torch cpu'
expect 1 "is no LibTorch" "HOLDFAST_TORCH is something else" <<<'HOLDFAST_TORCH=/tmp provide_torch cpu'

# A package that may not be installed beside another is unpacked, once; where it cannot be had, that is no error.
# shellcheck disable=SC2016 # the stand-ins and the tested shell expand these
{
    stand_in apt-cache 'echo "  Candidate: $([[ $2 == unknown ]] && echo "(none)" || echo 1.2)"'
    stand_in dpkg 'mkdir "$3/usr" && echo call >>"$3/usr/calls"'
    expect 0 "<$dir/cache/holdfast/other-1.2>" "unpacked" <<<'unpack_package other; echo "<$unpacked>"'
    expect 0 "<$dir/cache/holdfast/other-1.2>" "unpacked before" <<<'unpack_package other; echo "<$unpacked>"'
    expect 0 '^<>$' "no such package" <<<'unpack_package unknown; echo "<$unpacked>"'
    expect 0 '^<>$' "download fails" <<<'unpack_package refused; echo "<$unpacked>"'
}
[[ $(cat "$dir/cache/holdfast/other-1.2/usr/calls") == call ]] || {
    echo "FAIL: not unpacked once"
    failures=$((failures + 1))
}

# A Python whose "pip install" fails, is killed, or works; -m venv copies it to where a real one would be.
stand_in python3 "case \"\$*\" in
    *version_info*) echo cp311 ;;
    '-m venv '*) mkdir -p \"\$3/bin\" \"\$3/lib/python3.11/site-packages/torch\" && cp \"\$0\" \"\$3/bin/python\" ;;
    *'pip install'*) echo call >>'$dir/pip.log'; [[ -e '$dir/slow' ]] && sleep 2; [[ -e '$dir/killed' ]] && kill -9 \$PPID; [[ ! -e '$dir/offline' ]] ;;
esac"
install="base_python=$dir/bin/python3 provide_torch cpu"
touch "$dir/offline" && expect 1 'pip could not install LibTorch' "no network" <<<"$install"
rm "$dir/offline" && touch "$dir/killed" && expect 137 '' "killed while installing" <<<"$install" 2>/dev/null
rm "$dir/killed"
expect 0 'downloading' "after a killed install" <<<"$install"
expect 0 'LibTorch: .*/torch-.*-cp311-cpu-.*/site-packages/torch$' "second time" <<<"$install"
grep -q downloading "$dir/out" && {
    echo "FAIL: downloaded twice"
    failures=$((failures + 1))
}

# Two clones at once: one downloads, the other waits for it.
rm -rf "$dir/cache" "$dir/pip.log" && touch "$dir/slow"
for _ in 1 2; do
    bash -c 'source "$1/scripts/setup.bash"; eval "$2"' quickstart "$source_dir" "$install" >/dev/null 2>&1 &
done
wait
[[ $(wc -l <"$dir/pip.log") == 1 ]] || {
    echo "FAIL: two at once: $(wc -l <"$dir/pip.log") downloads"
    failures=$((failures + 1))
}
((failures == 0)) && echo "passed"
exit $((failures > 0))
