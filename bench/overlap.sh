#!/bin/bash
# A backward pass whose gradients travel in buckets while it computes: one rank on each side of a link of 1 Gbit/s (network namespaces, tc tbf).
#     make bench-overlap       (root)   writes bench/OVERLAP.md
cd "$(dirname "$0")/.." || exit 1
. tests/hosts.sh
missing=$(hosts_missing)
[ -z "$missing" ] || { echo "bench/overlap.sh: no hosts here: $missing"; exit 0; }
hosts_enter "$@"
rate=${1:-1gbit}
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
here=$PWD
cd "$work" || exit 1
hosts_open 2 || exit 1
# One link, limited once each way. Bursts of 2 ms, that segments pass whole: cut into packets they would cost more processor time than the rest.
tc qdisc replace dev p0 root tbf rate "$rate" burst 256k latency 400ms && on 0 tc qdisc replace dev eth0 root tbf rate "$rate" burst 256k latency 400ms || exit 1
{
    echo "# Buckets beside a link of $rate"
    echo
    echo "Two hosts (network namespaces of this machine of $(nproc) cores, \`tc tbf\`), a rank on each: 32 layers of 2 MiB of gradients, summed; medians of 15 rounds. Made by \`make bench-overlap\`, $(date -u +%F)."
    echo "*compute*: the pass without a transfer; *transfer*: all layers at once; *one after the other*: a pass, then the transfer; *buckets*: each layer's as soon as it is there."
    echo "Both cores compute: what the transfer needs of the processor (and, unseen here, the kernel for both ends of the link) is added to the compute wherever they run together."
    for thread in 1 0; do
        echo
        [ $thread = 1 ] && echo '## With a progress thread (`MESH_PROGRESS_THREAD=1`)' || echo '## Without: what was started moves in the next call to the library'
        for percent in 50 100 200; do
            echo
            MESH_PROGRESS_THREAD=$thread hosts_job 1 "$here/build/bench_overlap" 32 2048 15 $percent
            hosts_wait
            cat out.0
        done
    done
} | tee "$here/bench/OVERLAP.md"
