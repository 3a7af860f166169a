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
for h in 0 1; do hosts_rate $h "$rate"; done
{
    echo "# Buckets beside a link of $rate"
    echo
    echo "Two hosts (network namespaces of this machine of $(nproc) cores, \`tc tbf\`), a rank on each: 16 layers of 4 MiB of gradients, summed. Made by \`make bench-overlap\`, $(date -u +%F)."
    echo "*compute*: the pass without a transfer; *transfer*: all layers at once; *one after the other*: a pass, then the transfer; *buckets*: each layer's as soon as it is there."
    for thread in 1 0; do
        echo
        [ $thread = 1 ] && echo 'With a progress thread (`MESH_PROGRESS_THREAD=1`):' || echo 'Without (what was started moves in the next call to the library):'
        echo
        MESH_PROGRESS_THREAD=$thread hosts_job 1 "$here/build/bench_overlap"
        hosts_wait
        sed 's/^/    /' out.0
    done
} | tee "$here/bench/OVERLAP.md"
