#!/usr/bin/env bash
# mesh.h on one GPU, without a network: what can be answered there, in slices that each end within 8 minutes.
#     bash docs/gpu-runs/one-gpu.sh all | list | SLICE...      SLICE: versions, tests-1 ... tests-N, only-PART (of tests' names), examples, train, bench
# Each slice writes OUT/one-gpu-SLICE.txt: machine, versions, every command with its text and seconds, and as its last line PASS, NOT RUN or
# FAIL with what was wrong. Falling back to sockets, a test that did not run and a missing GPU are failures. Status 1 if a slice failed.
# Ranks share the GPU by NCCL_HOSTID (`mesh run --share-gpu`): for correctness only.
#   OUT      default docs/gpu-runs/DATE-GPU
#   LIMIT    seconds of a slice; default 480
#   SHORT    short tests in a slice; default 6
#   COMMIT   what to record where there is no .git
#   MESH_NCCL_LIBRARY, MESH_CUDART_LIBRARY, CUDA_HOME   where they are not found: the loader's paths, CUDA's toolkit, Python's wheels
#   TRIAL=1  allow tests/fake_nccl in their place, to try this script; OUT is then build-one-gpu/trial
set -euo pipefail
cd "$(dirname "$0")/../.."
B=build-one-gpu
home=$B/cuda # links to what was found, laid out as CUDA's toolkit
PATH=$PATH:/usr/local/nvidia/bin
LIMIT=${LIMIT:-480}
SHORT=${SHORT:-6}
text=$B/text # of the last command
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export LC_ALL=C

die() { echo "one-gpu: $*" >&2 && exit 1; }
first() { sed -n 1p; } # unlike head, it does not end who still writes
gpu() { nvidia-smi --id="${CUDA_VISIBLE_DEVICES%%,*}" --query-gpu="$1" --format=csv,noheader 2>/dev/null | first || true; }

# ---- libraries and headers

# Folders that may hold them, as CUDA's toolkit does (include, lib64) or a wheel (include, lib).
roots() {
    local site
    [ -z "${CUDA_HOME:-}" ] || echo "$CUDA_HOME"
    if command -v nvcc >/dev/null; then dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")"; fi
    echo /usr/local/cuda
    { python3 -c 'import sys; print("\n".join(p for p in sys.path if p.endswith("-packages")))' 2>/dev/null || true
      printf '%s\n' /opt/*/.venv/lib/python3*/site-packages /opt/*/lib/python3*/site-packages
    } | while read -r site; do
        [ ! -d "$site/nvidia" ] || printf '%s\n' "$site"/nvidia/*/
    done
}

# found NAME: its path, or nothing.
found() {
    local place root
    { tr ':' '\n' <<<"${LD_LIBRARY_PATH:-}" | sed '/^$/d'
      { ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true; } | sed -n 's|.*=> \(.*\)/[^/]*$|\1|p' | sort -u
      roots | while read -r root; do printf '%s\n' "${root%/}/lib64" "${root%/}/lib"; done
    } | while read -r place; do
        if [ -e "$place/$1" ]; then echo "$place/$1"; fi
    done | first
}

# The driver's CUDA decides which runtime can work.
find_libraries() {
    local newest name
    newest=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | first || true)
    if [ -z "${MESH_CUDART_LIBRARY:-}" ]; then
        for name in libcudart.so.13 libcudart.so.12; do
            if [ -n "${MESH_CUDART_LIBRARY:-}" ] || { [ "${newest:-13}" -lt 13 ] && [ $name = libcudart.so.13 ]; }; then continue; fi
            MESH_CUDART_LIBRARY=$(found $name)
        done
    fi
    [ -n "${MESH_NCCL_LIBRARY:-}" ] || MESH_NCCL_LIBRARY=$(found libnccl.so.2)
    [ -e "$MESH_CUDART_LIBRARY" ] || die "no libcudart.so.13 or .12 (${MESH_CUDART_LIBRARY:-none found}); MESH_CUDART_LIBRARY names it"
    [ -e "$MESH_NCCL_LIBRARY" ] || die "no libnccl.so.2 (${MESH_NCCL_LIBRARY:-none found}); MESH_NCCL_LIBRARY names it"
    MESH_CUDART_LIBRARY=$(readlink -f "$MESH_CUDART_LIBRARY")
    MESH_NCCL_LIBRARY=$(readlink -f "$MESH_NCCL_LIBRARY")
    export MESH_CUDART_LIBRARY MESH_NCCL_LIBRARY
    stand_in=0
    if grep -q fake_counts "$MESH_CUDART_LIBRARY" || grep -q fake_unsafe_aborts "$MESH_NCCL_LIBRARY"; then stand_in=1; fi
    [ $stand_in = 0 ] || [ -n "${TRIAL:-}" ] || die "$MESH_NCCL_LIBRARY is the stand-in, which says nothing about a GPU; TRIAL=1 to try this script"
}

# $home: what the Makefile takes for CUDA's toolkit. What comes first stays.
lay_out() {
    local root f name
    mkdir -p $home/include $home/lib64
    ln -sf "$MESH_CUDART_LIBRARY" "$home/lib64/$(soname "$MESH_CUDART_LIBRARY")"
    ln -sf "$MESH_CUDART_LIBRARY" $home/lib64/libcudart.so
    { roots && echo /usr; } | while read -r root; do
        root=${root%/}
        for f in "$root"/include/*; do
            [ "$root" != /usr ] || case ${f##*/} in nccl*) ;; *) continue ;; esac
            [ ! -e "$f" ] || ln -sn "$f" "$home/include/${f##*/}" 2>/dev/null || true
        done
        for f in "$root"/lib64/libcublas*.so* "$root"/lib/libcublas*.so*; do
            [ ! -e "$f" ] || ln -sn "$f" "$home/lib64/${f##*/}" 2>/dev/null || true
        done
    done
    for name in libcublas libcublasLt; do
        for f in "$home/lib64/$name".so.*; do
            [ ! -e "$f" ] || ln -sn "${f##*/}" "$home/lib64/$name.so" 2>/dev/null || true
        done
    done
}
soname() { # libcudart.so.13 of libcudart.so.13.0.96
    basename "$1" | sed 's/\(\.so\.[0-9]*\).*/\1/'
}

build() { # build TARGET...; slices that run side by side do so one after the other
    local cap
    exec 9>$B/lock
    flock 9 2>/dev/null || true
    cap=$(gpu compute_cap)
    [[ $cap =~ ^[0-9]+\.[0-9]+$ ]] || cap=8.0
    run make -s -j"$(nproc)" B=$B CUDA_HOME="$PWD/$home" NVCC="$nvcc" NVCC_ARCH="sm_${cap/./}" "${@/#/$B/}"
    exec 9>&-
    [ $problems = 0 ] || exit 1
}

# ---- one command

# run COMMAND...: its text and seconds; a status other than 0 is a problem. Its text is in $text then.
run() {
    local start=$EPOCHREALTIME status=0
    echo "\$ $*"
    "$@" >$text 2>&1 || status=$?
    cat $text
    awk -v a="$start" -v b="$EPOCHREALTIME" -v s=$status 'BEGIN { printf "(status %d, %.1f s)\n\n", s, b - a }'
    if grep -qE '(over|on) sockets' $text; then problem "fell back to sockets: $*"; fi
    [ $status = 0 ] || problem "status $status: $*"
}
problems=0
problem() { problems=$((problems + 1)) && echo "problem: $*"; }
# has COUNT PATTERN: so many lines of the last command's text match.
has() {
    local n
    n=$(grep -cE -- "$2" $text || true)
    [ "$n" = "$1" ] || problem "$n lines with \"$2\", expected $1"
}

# ---- slices

machine() {
    local changes commit
    commit=$(git rev-parse HEAD 2>/dev/null || echo "${COMMIT:-unknown (no .git; COMMIT= says it)}")
    changes=$({ git status --porcelain -uno -- . ':!docs/gpu-runs' 2>/dev/null || true; } | wc -l)
    [ "$changes" = 0 ] || commit="$commit, and changes in $changes files"
    echo "slice      $1"
    echo "date       $(date -u +%Y-%m-%dT%H:%MZ)"
    echo "commit     $commit"
    echo "sources    sha256 $(find mesh* transports tests examples bench tools Makefile -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16) of mesh*, transports, tests, examples, bench, tools, Makefile"
    echo "GPU        $(gpu name), $(gpu memory.total), compute capability $(gpu compute_cap)"
    echo "driver     $(gpu driver_version)"
    echo "libcudart  $MESH_CUDART_LIBRARY"
    echo "libnccl    $MESH_NCCL_LIBRARY: $(grep -aoE -m1 'NCCL version [0-9][0-9.]*(\+cuda[0-9.]+)?' "$MESH_NCCL_LIBRARY" | first || true)"
    [ $stand_in = 0 ] || echo "STAND-IN   tests/fake_nccl: nothing below says anything about a GPU"
    echo
}

slice_versions() {
    run nvidia-smi
    run uname -srm
    run nproc
    run cc --version
    run make --version
    if [ -n "$nvcc" ]; then run "$nvcc" --version; else echo "nvcc       none" && echo; fi
    echo "headers    $(readlink -f $home/include/nccl.h 2>/dev/null || echo "nccl.h of tests/fake_nccl/include (types only)")"
    echo
    local all=(mesh test_gpu bench_gpu gpu_hello gpu_redistribute)
    if can_train; then all+=(train_gpt_cuda); fi
    build "${all[@]}" # side by side, for the other slices too
    run $B/gpu_hello --device cuda # it says which NCCL
    has 1 'over nccl'
}

# The tests of slice N: SHORT short ones, which have 60 s each, or one that may take minutes where ranks share.
members() {
    "$B/test_gpu" --list | awk -v n="$1" -v six="$SHORT" '
        /\/(conformance|redistribute)_/ { long[++longs] = $0; next }
        { short[++shorts] = $0 }
        END {
            full = int((shorts + six - 1) / six)
            for (i = six * (n - 1) + 1; i <= six * n && i <= shorts; i++) print short[i]
            if (n > full && n - full <= longs) print long[n - full]
        }'
}

slice_tests() { # slice_tests N, or only-PART: those whose name has it
    local name names
    build test_gpu
    case $1 in
    only-*) mapfile -t names < <("$B/test_gpu" --list | grep -F -- "${1#only-}" || true) ;;
    *) mapfile -t names < <(members "$1") ;;
    esac
    [ ${#names[@]} != 0 ] || { problem "there is no test for $1; see list" && return; }
    run "$B/test_gpu" "${names[@]}"
    has 1 '^on NCCL, [1-9]'
    has 0 '^(FAIL|skip)'
    for name in "${names[@]}"; do
        grep -qE "^ok   $name +[0-9]" $text || problem "$name did not end well, or did not run"
    done
}

slice_examples() {
    local n
    build mesh gpu_hello gpu_redistribute
    run $B/gpu_hello --device cuda
    has 1 'over nccl .*: the sum is 1$'
    for n in 2 4; do
        run $B/mesh run -n $n --idle-timeout 90 --share-gpu -- $B/gpu_hello --device cuda
        has $n "over nccl .*: the sum is $((n * (n + 1) / 2))\$"
    done
    for n in 1 2 3 4; do
        run $B/mesh run -n $n --idle-timeout 90 --share-gpu -- $B/gpu_redistribute --device cuda
        has $n 'over nccl .*: 0 elements wrong'
    done
}

# Why train_gpt_cuda cannot be built here; or nothing, and the status says it can.
can_train() {
    local m
    if [ $stand_in = 1 ]; then echo "the stand-in runs no CUDA kernels" && return 1; fi
    if [ -z "$nvcc" ]; then echo "no nvcc, which compiles its kernels" && return 1; fi
    for m in include/nccl.h include/cublas_v2.h lib64/libcublas.so; do
        if [ ! -e "$home/$m" ]; then echo "no ${m##*/} beside nvcc, which its build needs" && return 1; fi
    done
}

# On the CPU, on the GPU, and on ranks that share it: the same losses. Saved by GPUs, gone on with by a CPU.
slice_train() {
    local m why
    why=$(can_train) || not_run "$why"
    build mesh train_gpt_cuda
    run $B/train_gpt_cuda --steps 20 --log $B/cpu.csv
    for m in dp=1 dp=2 tp=2 pp=2 pp=2,tp=2 dp=2,tp=2 "pp=2 --schedule zb-h1 --micro 4" "dp_shard=2,tp=2 --sp --zero 3"; do
        local axes=${m%% *} n=1 k
        for k in ${axes//[^0-9]/ }; do n=$((n * k)); done
        # shellcheck disable=SC2086
        run $B/mesh run -n "$n" --idle-timeout 120 --share-gpu -- $B/train_gpt_cuda --device cuda --mesh $m --steps 20 --against $B/cpu.csv
        has 1 'largest relative difference'
    done
    run $B/train_gpt_cuda --experts 4 --steps 20 --log $B/experts.csv
    run $B/mesh run -n 2 --idle-timeout 120 --share-gpu -- $B/train_gpt_cuda --device cuda --mesh cp=2 --ring --steps 20 --against $B/cpu.csv
    has 1 'largest relative difference'
    for m in "2 dp_shard=2 --ep 2" "4 cp=2,tp=2 --ep 4 --ring --zero 2"; do
        # shellcheck disable=SC2086
        run $B/mesh run -n "${m%% *}" --idle-timeout 120 --share-gpu -- $B/train_gpt_cuda --device cuda --experts 4 --mesh ${m#* } --steps 20 --against $B/experts.csv
        has 1 'largest relative difference'
    done
    rm -rf $B/saved
    run $B/mesh run -n 2 --idle-timeout 120 --share-gpu -- $B/train_gpt_cuda --device cuda --mesh dp_shard=2 --zero 3 --steps 10 --save $B/saved
    run $B/train_gpt_cuda --steps 20 --resume $B/saved --against $B/cpu.csv
    has 1 'largest relative difference'
    run $B/mesh run -n 2 --idle-timeout 120 --share-gpu -- $B/train_gpt_cuda --device cuda --mesh tp=2 --steps 20 --resume $B/saved --against $B/cpu.csv
    has 1 'largest relative difference'
}
not_run() { echo "NOT RUN: $*" && exit 3; }

# Kernels beside 2-D copies are a matter of one GPU. Beside NCCL nothing is: there the results are checked, and that it says so.
slice_bench() {
    build mesh bench_gpu
    run $B/bench_gpu --what packing,kernels --rounds 3
    has 1 'the kernel is faster up to rows'
    has 0 'some results are wrong'
    run $B/mesh run -n 2 --idle-timeout 120 --share-gpu -- $B/bench_gpu --shared
    has 1 'ranks, NCCL'
    has 0 'some results are wrong'
    refuses 'refused: one rank' $B/bench_gpu
    refuses 'refused: ranks share a GPU' $B/mesh run -n 2 --idle-timeout 120 --share-gpu -- $B/bench_gpu
}
refuses() { # refuses TEXT COMMAND...
    local status=0
    echo "\$ ${*:2}"
    "${@:2}" >$text 2>&1 || status=$?
    cat $text
    echo "(status $status, which is as it should be: it is not 0)"
    echo
    [ $status != 0 ] || problem "gave figures that say nothing: ${*:2}"
    has 1 "$1"
}

# ---- all of them

prepare() {
    command -v nvidia-smi >/dev/null || die "no GPU: there is no nvidia-smi"
    [ -n "$(gpu name)" ] || die "no GPU: nvidia-smi lists none: $(nvidia-smi 2>&1 | first || true)"
    find_libraries
    nvcc=$({ command -v nvcc; roots | sed 's|/*$|/bin/nvcc|'; } | while read -r n; do if "$n" --version >/dev/null 2>&1; then echo "$n"; fi; done | first)
    [ $stand_in = 0 ] || nvcc=
    local now="$MESH_CUDART_LIBRARY $MESH_NCCL_LIBRARY $nvcc"
    mkdir -p $B
    exec 9>$B/lock
    flock 9 2>/dev/null || true
    if [ "$(cat $B/made-with 2>/dev/null)" != "$now" ]; then rm -rf $B/cuda $B/test_gpu $B/bench_gpu $B/gpu_* $B/train_gpt_c*; fi
    mkdir -p $B
    echo "$now" >$B/made-with
    lay_out
    exec 9>&-
    if [ $stand_in = 1 ]; then OUT=${OUT:-$B/trial}; fi
    OUT=${OUT:-docs/gpu-runs/$(date -u +%Y-%m-%d)-$(gpu name | tr -cs 'A-Za-z0-9\n' -)}
    mkdir -p "$OUT"
}

# What a test of this slice that was cut off has left behind: slices may run side by side.
end_leftovers() {
    local p
    for p in /proc/[0-9]*; do
        case $(readlink "$p/exe" 2>/dev/null) in "$PWD/$B"/*) ;; *) continue ;; esac
        if tr '\0' '\n' <"$p/environ" 2>/dev/null | grep -qx "ONE_GPU_SLICE=$1"; then kill -9 "${p#/proc/}" 2>/dev/null || true; fi
    done
}

slice() { # slice NAME: its text goes to a file, its last line says how it went
    local file="$OUT/one-gpu-$1.txt" status=0 start=$SECONDS verdict
    ONE_GPU_SLICE=$1 timeout -k 10 "$LIMIT" bash "$0" inside "$1" >"$file" 2>&1 </dev/null || status=$?
    end_leftovers "$1"
    sed -i "s|$PWD|.|g" "$file"
    case ${HOME:-/} in / | /root) ;; *) sed -i "s|$HOME|~|g" "$file" ;; esac
    case $status in
    0) verdict="PASS $1, $((SECONDS - start)) s" ;;
    3) verdict="NOT RUN $1: $(sed -n 's/^NOT RUN: //p' "$file")" ;;
    124 | 137) verdict="FAIL $1: no end after $LIMIT s" ;;
    *)
        verdict=$(sed -n 's/^problem: //p; s/^one-gpu: //p' "$file" | sed -n 1,3p | paste -sd';')
        verdict="FAIL $1, $((SECONDS - start)) s: ${verdict:-status $status, $(tail -1 "$file")}"
        ;;
    esac
    [ $stand_in = 0 ] || verdict="$verdict (on the stand-in)"
    echo "$verdict" >>"$file"
    cat "$file"
    verdicts+=("$verdict")
    case $status in 0 | 3) ;; *) failed=1 ;; esac
}

if [ "${1:-}" = inside ]; then
    text=$B/text-$2
    prepare
    machine "$2"
    case $2 in
    tests-*) slice_tests "${2#tests-}" ;;
    only-*) slice_tests "$2" ;;
    *) "slice_$2" ;;
    esac
    [ $problems = 0 ]
    exit
fi
[ $# -gt 0 ] || { sed -n '2,3p' "$0" >&2 && exit 2; }
for name in "$@"; do
    case $name in
    all | list | versions | examples | train | bench) ;;
    tests-[0-9] | tests-[0-9][0-9] | only-*) ;;
    *) die "no slice \"$name\"; see list" ;;
    esac
done
prepare
if [ "$1" = all ] || [ "$1" = list ]; then
    (build test_gpu) >$B/building || { cat $B/building && die "the tests do not build"; }
    all=(versions)
    for ((n = 1; ; n++)); do
        listed=$(members $n | paste -sd' ')
        [ -n "$listed" ] || break
        all+=("tests-$n")
        [ "$1" = all ] || echo "tests-$n: $listed"
    done
    [ "$1" = all ] || { echo "and versions, examples, train, bench" && exit 0; }
    set -- "${all[@]}" examples train bench
fi
failed=0
verdicts=()
for name in "$@"; do slice "$name"; done
echo
echo "in $OUT:"
printf '%s\n' "${verdicts[@]}"
exit $failed
