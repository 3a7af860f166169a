#!/usr/bin/env python3
"""bench/hosts.csv as a table: time of flat / time of levels (medians over turns, out of place), above 1 where levels are faster."""
import collections, csv, statistics, sys

rows = collections.defaultdict(list)
for row in csv.reader(open(sys.argv[1] if len(sys.argv) > 1 else "bench/hosts.csv")):
    if len(row) < 18 or row[5] == "call" or row[13] == "1": continue
    hosts, per, rate, turn, way, call, _, ranks, size = row[:9]
    if row[17] != "0": sys.exit(f"wrong values: {row}")
    rows[hosts, per, rate, call, int(size), way].append(float(row[14]))
sizes = sorted({k[4] for k in rows})
name = lambda n: f"{n} B" if n < 1024 else f"{n >> 10} KiB" if n < 1 << 20 else f"{n >> 20} MiB"
print("| hosts x ranks, link | call | " + " | ".join(name(n) for n in sizes) + " |")
print("|---|---|" + "---|" * len(sizes))
for hosts, per, rate, call in sorted({k[:4] for k in rows}):
    cells = []
    for size in sizes:
        flat, levels = (rows.get((hosts, per, rate, call, size, way)) for way in ("flat", "levels"))
        cells.append(f"{statistics.median(flat) / statistics.median(levels):.2f}" if flat and levels else "")
    print(f"| {hosts} x {per}, {rate} | {call} | " + " | ".join(cells) + " |")
