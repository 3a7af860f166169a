#!/usr/bin/env bash
# tests/valgrind.sh [part of a test's name ...]: the tests under memcheck. A test fails whose process reads what was never written, or touches what is
# not its own. (Leaks are the address sanitizer's to find: a rank that is killed frees nothing.)
set -u
cd "$(dirname "$0")/.."
out=build-valgrind
mkdir -p $out
${CC:-cc} -Og -g -std=c99 tests/test_mesh.c -o $out/test_mesh -lpthread || exit 1

# Left out, for valgrind runs one thread at a time, 30 times as slow:
skip="
mesh/law/compose_exists mesh/random_walks mesh/golden/parallel_dims spec/laws   exhaustive: minutes, and mesh/law, spec/golden do the same in little
plan/ redistribute/sim redistribute/tcp redistribute/unix                       thousands of plans: corpus/plan and redistribute/lists go the same ways
conformance/                                                                    five minutes each: collectives and faults make the same calls
socket/many socket/thousand socket/crowd socket/strangers                       hundreds of processes under one valgrind each
faults/killed faults/sim_kill engine/exits                                      a hundred worlds each; faults/closed and engine/left_behind stay
scale                                                                           gigabytes
joining/few_files sockets/files                                                 a limit of descriptors lower than valgrind's own
engine/orphan                                                                   needs pidfd_open, which valgrind does not have
"
patterns=$(awk '{ for (i = 1; i <= NF && $i ~ "/|^scale$"; i++) print $i }' <<<"$skip" | sed 's/,$//' | sort -u)
if [ $# -gt 0 ]; then
    names=$*
else
    names=$($out/test_mesh --list | grep -vF "$patterns")
fi
set -o pipefail
valgrind --quiet --error-exitcode=9 --track-origins=yes --leak-check=no --fair-sched=yes $out/test_mesh --limit 600 $names 2>&1 |
    grep -vE '^--[0-9]+-- (WARNING: unhandled amd64-linux syscall: 434|You may be able|Read the file|Nevertheless we|it at http)' # no pidfd_open there
