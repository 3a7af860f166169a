# Sourced by .ci/run and tests/tools.sh: steps that run side by side, each with its seconds and those of the processor. Wants $out, a directory for logs.
jobs_most=${JOBS:-$(nproc)}
mkdir -p "$out"
: >"$out/results"

now() { echo "${EPOCHREALTIME/[.,]/}"; } # in microseconds

_step() {
    local name=$1 log start status processor TIMEFORMAT='%1U + %1S'
    log=$out/$(tr -c 'a-zA-Z0-9\n' _ <<<"$name").log
    shift
    start=$(now)
    processor=$({ time "$@" >"$log" 2>&1 </dev/null; } 2>&1)
    status=$?
    if [ $status = 0 ]; then
        echo ok >>"$out/results"
        printf 'ok   %-60s %6.1f s, processor %s\n' "$name" "$((($(now) - start) / 100000))e-1" "$processor"
    else
        echo failed >>"$out/results"
        printf 'FAIL %s (status %d)\n%s\n%s\n' "$name" $status "$(grep -aE -B 12 '^FAIL|ERROR: |WARNING: .*Sanitizer' "$log" | grep -av '^ok ' | head -60)" "$(tail -20 "$log" | grep -av '^ok ')"
    fi
}

# step NAME COMMAND...: run it beside others, show its output only when it fails.
step() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_most" ]; do wait -n; done
    _step "$@" &
}

# settle: until every step so far has ended. alone NAME COMMAND...: a step with nothing beside it.
settle() { wait; }
alone() {
    settle
    _step "$@"
}

# refuses NAME FRAGMENT COMMAND...: it must fail, and say why.
refuses() {
    local name=$1 fragment=$2
    shift 2
    step "$name" bash -c '! out=$("${@:2}" 2>&1) && grep -qF -- "$1" <<<"$out"' refuses "$fragment" "$@"
}

# The last line: how many passed. More can be counted in: steps_end PASSED FAILED.
steps_end() {
    settle
    local passed failed
    passed=$(($(grep -c ok "$out/results") + ${1:-0}))
    failed=$(($(grep -c failed "$out/results") + ${2:-0}))
    printf '%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
