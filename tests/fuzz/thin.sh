#!/usr/bin/env bash
# tests/fuzz/thin.sh MERGED KEPT: a corpus small enough to keep: at most 200 files and 100 KB of MERGED, the larger ones spread out evenly, and every
# found-... and law-... (made by hand) of KEPT.
set -u
cd "$1"
rm -f found-* law-* seed-*
i=0 n=$(ls | wc -l) bytes=0
for f in $(ls -S -r); do
    i=$((i + 1)) size=$(stat -c %s "$f")
    # of n files 200 are to stay: number i stays where i * 200 / n rises
    if [ $((i * 200 / n)) -gt $(((i - 1) * 200 / n)) ] || [ "$n" -le 200 ]; then
        bytes=$((bytes + size))
        [ $bytes -le 100000 ] && continue
    fi
    rm -f "$f"
done
cd - >/dev/null
cp "$2"/found-* "$2"/law-* "$1"/ 2>/dev/null
exit 0
