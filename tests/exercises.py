#!/usr/bin/env python3
"""examples/exercises.c beside answers worked out by hand. tests/exercises.py [BINARY]; the last line is "N passed, N failed"."""
import re, subprocess, sys

said = subprocess.run([sys.argv[1] if len(sys.argv) > 1 else "build/exercises"], capture_output=True, text=True, check=True).stdout
answer = dict(zip("123456", re.split(r"^\d\. ", said, flags=re.M)[1:]))
passed = failed = 0


def check(what, *expected, where):
    global passed, failed
    missing = [e for e in expected if e not in answer[where]]
    passed, failed = passed + (not missing), failed + bool(missing)
    print(f"{'FAIL' if missing else 'ok  '} {where}: {what}" + "".join(f"\n    not there: {e}" for e in missing))


def group(first, stride, n): return "{" + ",".join(str(first + stride * i) for i in range(n)) + "}"


# rank = 32 dp + 8 pp + tp, so groups have strides 32, 8, 1; 256 / 8, 256 / 4, 256 / 8 of them
check("groups of dp=8, pp=4, tp=8", *(group(k, 32, 8) for k in range(8)), *(group(k, 8, 4) for k in range(8)), *(group(8 * k, 1, 8) for k in range(8)),
      "(32 groups)\n  pp", "(64 groups)\n  tp", where="1")
check("every rank is drawn", *(" ".join(f"{8 * row + k:3d}" for k in range(8)) for row in range(32)), where="1")
# the sum over the axes of 256 / size: 32 + 64 + 32; 1; 8 + 32; 4 times 64
check("groups in all", "dp=8,pp=4,tp=8   128 groups", "dp=256           1 groups", "dp=32,tp=8       40 groups", "a=4,b=4,c=4,d=4  256 groups", where="2")
# 2 x 32 = 64 is the first, 64 + 32 - 1 the last
check("dp 2 of (4,4,8)", "pp=4,tp=8, ranks 64 to 95", group(64, 8, 4), group(71, 8, 4), group(64, 1, 8), group(88, 1, 8), where="3")
# 8192 / 8 rows on each tp rank; replicas: 8 x 4
check("the weight's spec", '"dp:R pp:R tp:S(0)"', '"[tp] [*]"', "1024 x 2048, rank 3 from row 3072", "on 32 ranks", where="4")
# A host with d ranks of a dp group has 8 / d of a tp group. A sum over ranks on h hosts, done on each host first, takes 2 (h - 1) / h of each rank's
# share across. Gradient of G bytes: shares of G / 8 / d on 256 ranks, h = 32 / d: 2 (32 / d - 1) G. Activations of A bytes on each of 32: shares of
# A d / 8 on 256 ranks, h = d, 4 times: 256 (d - 1) A.
G, A, rows, total = 49152 * 4096 * 2, 2048 * 4096 * 2, [], {1: {}, 8: {}}
for d in 1, 2, 4, 8:
    dp, tp = 2 * (32 // d - 1) * G, 256 * (d - 1) * A
    for k in total: total[k][d] = dp + k * tp
    rows.append(" +".join([f"tp {8 // d} x dp {d}"] + [re.escape(f"{x / 1e9:.3f}") for x in (dp, tp, dp + tp, dp + 8 * tp)]))
least = {k: min(t, key=t.get) for k, t in total.items()}
found = [re.search(r, answer["5"]).group() if re.search(r, answer["5"]) else r for r in rows]
check("bytes between hosts", *found, where="5")
check("the least", *(f"least with {k}: tp {8 // d} x dp {d}" for k, d in least.items()), where="5")
# 10 ms = 3 messages of 1 us (8 = 2 x 2 x 2) and 7/8 of the bytes in 9.997 ms. All_to_all: 7 us and 9.997 / 8. Sliced over dp=8 first: 3 us and 9.997 / 8
check("the chapter's way and cheaper ones", "10.000 ms: all_gather", "0.000 ms: slice", f"{0.007 + 9.997 / 8:.3f} ms: all_to_all",
      f"{0.003 + 9.997 / 8:.3f} ms: slice, all_gather", f"{4096 * 4096 * 2 * 7 / 8 / 9.997e6:.2f} GB/s", where="6")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
