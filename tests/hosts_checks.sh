#!/bin/bash
# Jobs over two and four hosts (tests/hosts.sh): cables pulled and put back, slow and lossy links, delay, a network in two halves, and a host whose
# kernel is busy. From the repository's root, after make build/hosts_rank build/relay; arguments: parts of names. A check prints ok or FAIL.
# All run side by side, each in namespaces of its own: most of the time is the transport's, until it gives a host up (20 s).
. "$(dirname "$0")/hosts.sh"
program=$hosts_here/build/hosts_rank

all_up() { local r; for r in "${!rank_pid[@]}"; do [ -e "up.$r" ] || return 1; done; }
all_are() { local r; for r in "${!rank_status[@]}"; do [ "${rank_status[r]}" = "$1" ] || return 1; done; } # all_are STATUS
has() { grep -qF -- "$2" "out.$1"; } # has RANK TEXT

# Rank R blames one of LIST, has lost exactly LIST, and goes on with its side.
gave_up() { # gave_up R "LIST"
    local blamed
    blamed=$(sed -n "s/^rank $1: blames //p" "out.$1")
    [ -n "$blamed" ] && [[ " $2 " == *" $blamed "* ]] && has "$1" "rank $1: peer lost" && has "$1" "rank $1: lost $2." && has "$1" "rank $1: side ok"
}

# The cable of host 1 is pulled: the others name its ranks and no others, it names all others; on every host the job of that host goes on.
check_cable() {
    local r ok=0
    hosts_open 3 || return 1
    for r in 0 1 2 3 4 5; do hosts_rank $r 6 2 "$program" --until end --bytes 300000 --side 2 --lost $((r / 2 == 1 ? 4 : 2)); done
    hosts_until all_up || return 1
    hosts_cable 1 down
    hosts_wait
    for r in 2 3; do gave_up $r "0 1 4 5" || ok=1; done
    for r in 0 1 4 5; do gave_up $r "2 3" || ok=1; done
    return $ok
}

# The same, but put back after 6 s: nobody is given up, every result is right.
check_cable_back() {
    hosts_open 2 && hosts_job 2 "$program" --until end --bytes 300000 || return 1
    hosts_until all_up || return 1
    hosts_cable 1 down
    sleep 6 # how long it is out: shorter than what TCP gives a host up after
    hosts_cable 1 up
    rm -f up.*
    sleep 1
    : >end
    hosts_wait
    all_are 0
}

# Two halves that do not hear each other: each names the other half, and goes on.
check_partition() {
    local ok=0
    hosts_open 4 && hosts_job 1 "$program" --until end --bytes 300000 --side 2 --lost 2 || return 1
    hosts_until all_up || return 1
    hosts_cut "0 1" "2 3"
    hosts_wait
    gave_up 0 "2 3" && gave_up 1 "2 3" && gave_up 2 "0 1" && gave_up 3 "0 1" || ok=1
    return $ok
}

# A link so slow that a message takes longer than a silent host is given.
check_rate() {
    hosts_open 2 && hosts_rate 1 300kbit && hosts_job 1 "$program" --rounds 1 --bytes 1000000 || return 1
    hosts_wait
    all_are 0 && awk '/rounds and/ { if ($8 + 0 < 20) exit 1 }' out.0
}

check_loss() {
    hosts_open 4 && hosts_loss 1 5 && hosts_loss 3 5 && hosts_job 1 "$program" --rounds 12 --bytes 200000 || return 1
    hosts_wait
    all_are 0
}

# 40 ms each way: no barrier of two hosts is faster than that, and nothing else changes.
check_delay() {
    hosts_open 2 && hosts_delay 1 40 && hosts_job 2 "$program" --rounds 5 --bytes 100000 --barriers 5 || return 1
    hosts_wait
    all_are 0 && awk '/rounds and/ { if ($8 + 0 < 0.2) exit 1 }' out.0
}

# A host that drops what goes over its own loopback for 24 s, as a kernel without time or memory does: it is not silent to itself.
check_near() {
    hosts_open 1 && MESH_SOCKET_LANES=tcp hosts_job 3 "$program" --until end --bytes 300000 || return 1
    hosts_until all_up || return 1
    hosts_filter 0 lo "meta l4proto tcp"
    sleep 24
    hosts_mend
    : >end
    hosts_wait
    all_are 0
}

# What a script that is killed leaves: nothing.
check_killed() {
    local inner
    cat >victim.sh <<'S'
. "$1/tests/hosts.sh"
hosts_enter "$@"
hosts_open 2 || exit
on 1 sleep 1000 &
echo ready >killed.ready
wait
S
    unshare -p --fork --kill-child --mount-proc env -u HOSTS_INSIDE bash victim.sh "$hosts_here" >victim.out 2>&1 &
    inner=$!
    hosts_until [ -s killed.ready ] || return 1
    kill -KILL "$inner"
    wait "$inner" 2>/dev/null
    hosts_until bash -c '[ "$(pgrep -cx sleep)" = 0 ]' # this check's own namespace of processes: the hosts' are in it
}

# Collectives over hosts, on the host and across, host by host and in turn: every value is right.
check_levels() {
    local call r
    for call in all_reduce broadcast all_gather reduce_scatter all_to_all; do echo "$call ranks<=* bytes<=* levels segment=512"; done >levels
    hosts_open 2 || return 1
    MESH_TUNING=$PWD/levels hosts_job 3 "$hosts_here/build/mesh" bench --call all --min 24 --max 3000 --iters 5 --csv
    hosts_wait
    all_are 0 || return 1
    hosts_job 3 "$hosts_here/build/mesh" bench --call all --min 24 --max 100000 --iters 5 --csv
    hosts_wait
    all_are 0 || return 1
    for r in 0 1 2 3 4 5; do hosts_rank_at $((r % 2)) "$r" 6 3 "$hosts_here/build/mesh" bench --call all --min 24 --max 100000 --iters 5 --csv; done
    hosts_wait
    all_are 0 && [ "$(grep -c ',0$' out.0)" -gt 30 ] && ! grep -qE ',[1-9][0-9]*$' out.0
}

# ---- every check in a process of its own, side by side

if [ "${1:-}" = --one ]; then # inside: the check's name, its directory
    hosts_enter "$@"
    cd "$3" && "$2"
    status=$?
    echo $SECONDS >seconds
    exit $status
fi
missing=$(hosts_missing)
command -v nft >/dev/null || missing=${missing:-no nft}
if [ -n "$missing" ]; then
    echo "skip: no hosts in network namespaces ($missing)"
    echo "0 passed, 0 failed"
    exit 0
fi
box=$(mktemp -d)
trap 'rm -rf "$box"' EXIT
passed=0 failed=0 names=() jobs=()
for check in $(declare -F | sed -n 's/.* \(check_.*\)/\1/p'); do
    wanted=$#
    for part in "$@"; do [[ $check == *$part* ]] && wanted=0; done
    [ "$wanted" = 0 ] || continue
    mkdir "$box/$check"
    timeout -k 1 100 bash "$0" --one "$check" "$box/$check" >"$box/$check/log" 2>&1 &
    names+=("$check") jobs+=($!)
done
for i in "${!names[@]}"; do
    check=${names[i]}
    if wait "${jobs[i]}"; then
        passed=$((passed + 1)) && echo "ok   ${check#check_} ($(cat "$box/$check/seconds") s)"
    else
        failed=$((failed + 1)) && echo "FAIL ${check#check_}: $(cd "$box/$check" && tr '\n' '|' <log; cat out.* 2>/dev/null | tr '\n' '|')"
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
