# Hosts as network namespaces on a switch: to be sourced by scripts that test or measure a job over several hosts on one machine. Needs root.
#     . tests/hosts.sh
#     hosts_enter "$@"              the script begins again inside namespaces of its own: whatever happens to it, nothing is left
#     hosts_open 4                  host0 .. host3 at 10.77.0.1 .. 10.77.0.4, each with its own names, /dev/shm, IPC and abstract sockets
#     hosts_job 2 build/hello       two ranks on each host in the background, as a launcher would start them; rank R prints to out.R
#     hosts_wait                    until all have ended; rank_status[R]
#     on 2 ip addr                  a command on host2
# What befalls a host: hosts_cable 1 down|up, hosts_rate 1 2mbit, hosts_loss 1 10 (percent, each way), hosts_cut "0 1" "2 3" (no packet between
# them), hosts_mend (undoes rate, loss and cut), hosts_delay 1 50 (ms each way, from then on; takes build/relay), hosts_names 1 'TEXT' (/etc/hosts).
hosts_here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Why there can be no hosts here, or nothing.
hosts_missing() {
    local tool
    [ "$(id -u)" = 0 ] || { echo "not root"; return; }
    for tool in unshare nsenter ip tc; do command -v $tool >/dev/null || { echo "no $tool"; return; }; done
    unshare -nmuip --fork true 2>/dev/null || echo "namespaces are not allowed"
}

hosts_enter() {
    [ -n "${HOSTS_INSIDE:-}" ] && return
    HOSTS_INSIDE=1 exec unshare -nmp --fork --kill-child --mount-proc bash "$0" "$@"
}

hosts_until() { # hosts_until COMMAND...: until it succeeds, 20 s at most
    local i
    for ((i = 0; i < 1000; i++)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.02; done
    echo "waited in vain for: $*" >&2
    return 1
}
hosts_own_net() { [ "$(readlink "/proc/$1/ns/net")" != "$(readlink /proc/self/ns/net)" ] && [ -e "host.$2" ]; }

on() { # on H COMMAND...
    local h=$1
    shift
    nsenter -t "${host_pid[h]}" -n -m -u -i bash -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

hosts_open() { # hosts_open N
    local h all='127.0.0.1 localhost\n'
    hosts_n=$1 host_pid=() rank_pid=() rank_status=()
    for ((h = 0; h < $1; h++)); do all+="10.77.0.$((h + 1)) host$h\n"; done
    ip link add name sw type bridge && ip link set sw up || return 1
    for ((h = 0; h < $1; h++)); do
        rm -f "host.$h"
        printf "%b" "$all" >"hosts.$h"
        unshare -nmui bash -c 'hostname "host$0" && mount --bind "hosts.$0" /etc/hosts && mount -t tmpfs none /dev/shm && ip link set lo up && : >"host.$0" && exec sleep infinity' "$h" &
        host_pid[h]=$!
        hosts_until hosts_own_net "${host_pid[h]}" "$h" || return 1
        ip link add name "p$h" type veth peer name eth0 netns "${host_pid[h]}" && ip link set "p$h" master sw up || return 1
        on "$h" bash -c "ip addr add 10.77.0.$((h + 1))/24 dev eth0 && ip link set eth0 up" || return 1
    done
}

hosts_names() { printf "%b" "$2" >"hosts.$1"; }

hosts_job() { # hosts_job RANKS_PER_HOST COMMAND...
    local per=$1 r
    shift
    for ((r = 0; r < per * hosts_n; r++)); do
        hosts_rank "$r" $((per * hosts_n)) "$per" "$@"
    done
}
hosts_rank() { # hosts_rank R SIZE RANKS_PER_HOST COMMAND...: what hosts_job does for each
    hosts_rank_at $(($1 / $3)) "$@"
}
hosts_rank_at() { # hosts_rank_at HOST R SIZE RANKS_PER_HOST COMMAND...
    local h=$1 r=$2 size=$3 per=$4
    shift 4
    on "$h" env RANK="$r" WORLD_SIZE="$size" LOCAL_RANK=$((r % per)) LOCAL_WORLD_SIZE="$per" MASTER_ADDR="${MASTER_ADDR:-host0}" \
        MASTER_PORT="${MASTER_PORT:-29611}" MESH_SECRET="${MESH_SECRET:-0123456789abcdef}" "$@" >"out.$r" 2>&1 &
    rank_pid[r]=$!
}
hosts_wait() {
    local r
    for r in "${!rank_pid[@]}"; do wait "${rank_pid[r]}"; rank_status[r]=$?; done
}

hosts_cable() { ip link set "p$1" "$2"; }
hosts_rate() {
    tc qdisc replace dev "p$1" root tbf rate "$2" burst 16k latency 400ms && on "$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 16k latency 400ms
}
hosts_filter() { # hosts_filter H INTERFACE [CONDITION...]: drop what comes in, and goes out
    local h=$1 i=$2
    shift 2
    on "$h" nft -f - <<S
table inet rig {
    chain in { type filter hook input priority 0; iifname "$i" $1 drop; }
    chain out { type filter hook output priority 0; oifname "$i" ${2:-$1} drop; }
}
S
}
hosts_loss() { hosts_filter "$1" eth0 "numgen random mod 100 < $2"; }
hosts_cut() {
    local a b
    for a in $1; do for b in $2; do hosts_filter "$a" eth0 "ip saddr 10.77.0.$((b + 1))" "ip daddr 10.77.0.$((b + 1))" || return 1; done; done
}
hosts_mend() {
    local h
    for ((h = 0; h < hosts_n; h++)); do
        tc qdisc del dev "p$h" root 2>/dev/null
        on "$h" tc qdisc del dev eth0 root 2>/dev/null
        on "$h" nft delete table inet rig 2>/dev/null
    done
    return 0
}
hosts_delay() { # this kernel may have no netem: a program carries the frames, late
    ip link add name "d$1" type veth peer name "e$1" && ip link set "p$1" nomaster && ip link set "e$1" master sw up && ip link set "d$1" up || return 1
    "$hosts_here/build/relay" "p$1" "d$1" "$2" >"relay.$1" 2>&1 &
    hosts_until grep -q carries "relay.$1"
}
