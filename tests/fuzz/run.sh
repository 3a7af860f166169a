#!/usr/bin/env bash
# tests/fuzz/run.sh SECONDS [TARGET ...]: each target for so long, from its kept corpus (tests/corpus/TARGET.txt); what is new and reaches more is
# kept, the smallest that do. tests/fuzz/run.sh --check SECONDS keeps nothing: CI's. What it finds lies in build-fuzz/found; fuzz_TARGET FILE
# repeats it. A failure becomes an entry "found-..." of the corpus: tests/fuzz/run.sh --add TARGET NAME FILE.
set -u
cd "$(dirname "$0")/../.."
out=build-fuzz
: "${CLANG:=clang}" "${FUZZ_JOBS:=1}"
mkdir -p $out/found

if [ "${1:-}" = --add ]; then
    mkdir -p $out/add && rm -f $out/add/* && $out/fuzz_mesh --unpack "tests/corpus/$2.txt" $out/add && cp "$4" "$out/add/found-$3" &&
        $out/fuzz_mesh --pack $out/add "tests/corpus/$2.txt"
    exit
fi
check=0
[ "${1:-}" != --check ] || { check=1 && shift; }
seconds=${1:-60}
shift
all="mesh spec tuning topology environment trace plan frames handshake calls"
failed=0

new=0
for f in tests/fuzz/* tests/*.h tools/*.h *.h mesh/*.h transports/*.h transports/*/*.h; do [ "$f" -ot $out/fuzz_mesh ] || new=1; done
if [ $new = 1 ]; then
    $CLANG -std=gnu99 -gline-tables-only -O$((1 - check)) -Wall -Wextra -Wshadow -Wno-unused-function -fsanitize=fuzzer,address,undefined \
        -fno-sanitize-recover=undefined tests/fuzz/fuzz.c -o $out/fuzz_mesh -lpthread || exit 1
    for t in $all; do [ "$t" = mesh ] || ln -f $out/fuzz_mesh "$out/fuzz_$t"; done
fi

for t in ${*:-$all}; do
    dir=$out/$t kept=$out/$t.kept
    mkdir -p "$dir" "$kept"
    rm -f "$kept"/*
    $out/fuzz_mesh --unpack "tests/corpus/$t.txt" "$kept" >/dev/null || exit 1
    [ $check = 0 ] || rm -f "$dir"/*
    start=$SECONDS
    if ! nice "$out/fuzz_$t" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=2048 -jobs=$((FUZZ_JOBS > 1 ? FUZZ_JOBS : 0)) \
        -workers="$FUZZ_JOBS" -use_value_profile=$((1 - check)) -artifact_prefix="$out/found/$t-" "$dir" "$kept" >"$out/$t.log" 2>&1; then
        failed=$((failed + 1))
        printf 'FAIL fuzz %s\n' "$t"
        grep -aE '^    |SUMMARY|runtime error|Test unit written|^ALARM' "$out/$t.log" | head -30
        continue
    fi
    printf 'ok   fuzz %-12s %s, %d s\n' "$t" "$(grep -aoE '^Done [0-9]+ runs' "$out/$t.log" | tail -1)" $((SECONDS - start))
    [ $check = 0 ] || continue
    # the smallest set that reaches as much; what was found once stays
    rm -rf "$out/merged" && mkdir -p "$out/merged"
    "$out/fuzz_$t" -merge=1 -timeout=30 "$out/merged" "$dir" "$kept" >"$out/$t.merge.log" 2>&1 || { echo "FAIL fuzz $t: merging" && failed=$((failed + 1)) && continue; }
    bash tests/fuzz/thin.sh "$out/merged" "$kept"
    $out/fuzz_mesh --pack "$out/merged" "tests/corpus/$t.txt"
done
[ $failed = 0 ]
