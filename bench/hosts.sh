#!/bin/bash
# Collectives over hosts that are network namespaces with links of a given rate: what is built in but for levels beside levels, in turn.
#     make bench-hosts            (root)   writes bench/hosts.csv and prints a table: time of flat / time of levels, above 1 where levels are faster
#     bench/hosts.sh HOSTS RANKS_PER_HOST RATE [CALL ...]
cd "$(dirname "$0")/.." || exit 1
. tests/hosts.sh
missing=$(hosts_missing)
[ -z "$missing" ] || { echo "bench/hosts.sh: no hosts here: $missing"; exit 0; }
hosts_enter "$@"
hosts=$1 per=$2 rate=$3
shift 3
calls=${*:-all_reduce broadcast all_gather reduce_scatter all_to_all}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
here=$PWD
mkdir -p "$work/build" && cp build/mesh "$work/build/" && cd "$work" || exit 1
for call in all_reduce broadcast all_gather reduce_scatter all_to_all; do echo "$call ranks<=* bytes<=* levels"; done >levels
cat >flat <<'END'
all_reduce ranks<=* bytes<=16384 doubling
all_reduce ranks<=* bytes<=1572864 halving
all_reduce ranks<=* bytes<=* ring segment=1048576
broadcast ranks<=* bytes<=2097152 binomial
broadcast ranks<=* bytes<=* chain segment=524288
all_gather ranks<=* bytes<=262144 doubling
all_gather ranks<=* bytes<=* ring
reduce_scatter ranks<=* bytes<=16384 halving
reduce_scatter ranks<=* bytes<=* direct
all_to_all ranks<=* bytes<=65536 bruck
all_to_all ranks<=* bytes<=* direct
END
hosts_open "$hosts" || exit 1
for ((h = 0; h < hosts; h++)); do hosts_rate "$h" "$rate"; done
for turn in 1 2 3; do
    for call in $calls; do
        for way in flat levels; do
            MESH_TUNING=$work/$way hosts_job "$per" "$work/build/mesh" bench --call "$call" --min 8 --max 4M --factor 8 --csv
            hosts_wait
            sed "s/^/$hosts,$per,$rate,$turn,$way,/" out.0 >>"$work/all.csv"
        done
    done
done
cat "$work/all.csv" >>"$here/bench/hosts.csv"
