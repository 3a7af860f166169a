#!/usr/bin/env bash
# The MPI transport's tests on every MPI that is installed: `make test-mpi`. The last line is "N passed, N failed".
cd "$(dirname "$0")/.." || exit 1
build=${BUILD:-build} passed=0 failed=0
mkdir -p "$build"

run() { # MPI RANKS LAUNCHER...
    local mpi=$1 ranks=$2 line
    shift 2
    ended=0
    while read -r line; do
        case $line in
        "ok "*) passed=$((passed + 1)) && echo "$line, $ranks ranks of $mpi" ;;
        FAIL*) failed=$((failed + 1)) && echo "$line, $ranks ranks of $mpi" ;;
        *passed,*) ended=1 ;;
        *.[ch]:[0-9]*) echo "    $line" ;;
        esac
    done < <(timeout 240 "$@" -n "$ranks" "$build/test_mpi_$mpi" 2>&1)
    if line=$(timeout 60 "$@" -n "$ranks" "$build/heat_$mpi" 2>&1); then
        passed=$((passed + 1)) && echo "ok   examples/mpi/heat.c, $ranks ranks of $mpi"
    else
        failed=$((failed + 1)) && echo "FAIL examples/mpi/heat.c, $ranks ranks of $mpi: $line"
    fi
    [ "$ended" = 1 ] || { failed=$((failed + 1)) && echo "FAIL the tests on $ranks ranks of $mpi did not come to their end"; }
    ended=0
}

for mpi in openmpi mpich; do
    cc=mpicc.$mpi
    if ! command -v "$cc" >/dev/null; then
        echo "skip: $cc is missing"
        continue
    fi
    if ! $cc -std=c99 -D_POSIX_C_SOURCE=200809L ${CC_FLAGS:--O1} -Wall -Wextra -Wshadow -Wno-unused-function tests/test_mpi.c -o "$build/test_mpi_$mpi" -lpthread; then
        failed=$((failed + 1)) && echo "FAIL tests/test_mpi.c with $cc"
        continue
    fi
    if ! $cc -std=c99 -O2 -Wall -Wextra -I. examples/mpi/heat.c -o "$build/heat_$mpi" -lpthread; then
        failed=$((failed + 1)) && echo "FAIL examples/mpi/heat.c with $cc"
    fi
    for ranks in ${RANKS:-2 4}; do
        if [ $mpi = openmpi ]; then
            run $mpi $ranks mpirun.openmpi --allow-run-as-root --oversubscribe
        else
            run $mpi $ranks mpiexec.mpich
        fi
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
