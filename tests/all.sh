#!/usr/bin/env bash
# all.sh PROGRAM...: runs the test programs one after the other; the last line counts them together.
passed=0 failed=0
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
for program in "$@"; do
    "$program" 2>&1 | tee "$out"
    read -r p _ f _ < <(grep -aE '^[0-9]+ passed, [0-9]+ failed$' "$out" | tail -1)
    [ -n "$p" ] || { echo "FAIL $program: it ended without a count"; f=1; }
    passed=$((passed + p)) failed=$((failed + f))
    unset p f
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
