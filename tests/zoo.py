#!/usr/bin/env python3
"""`mesh zoo` against the textbook: what each parallelism moves in a step, by formulas of its own. tests/zoo.py [MESH]; the last line is "N passed, N failed"."""
import json, subprocess, sys, tempfile

tool = sys.argv[1] if len(sys.argv) > 1 else "build/mesh"
L, c, f, h, g, d, v, s, b, e = 4, 512, 2048, 16, 16, 32, 4096, 256, 64, 2


def model_of(micro):
    m = tempfile.NamedTemporaryFile("w", suffix=".model")
    m.write(f"# a model\nlayers {L}\nhidden {c}\nffn {f}\nheads {h}\nkv_heads {g}\nhead_width {d}\nvocabulary {v}\nsequence {s}\nbatch {b}\nbytes {e}\nmicro {micro}\n")
    m.flush()
    return m


model = model_of(4)
passed = failed = 0
block = {"token table": v * c, "weight norms": c, "weight q": c * h * d, "weight k, v": c * g * d, "weight out": c * h * d, "weight up": c * f,
         "weight down": c * f, "weight head": v * c}
times = {"token table": 1, "weight norms": 2 * L + 1, "weight q": L, "weight k, v": 2 * L, "weight out": L, "weight up": L, "weight down": L, "weight head": 1,
         "embedding": 1, "norm": 2 * L + 1, "attention out": L, "down": L, "q": L, "k, v": 2 * L, "attention": L}
stream = b * s * c * e  # the residual stream, whole


def zoo(*args, model=model):
    r = subprocess.run([tool, "zoo", *args, "--model", model.name, "--topology", "*:0us:1GB/s", "--json"], capture_output=True, text=True)
    if r.returncode: sys.exit(f"mesh zoo {' '.join(args)}: {r.stderr}")
    return json.loads(r.stdout)


def check(name, args, forward, backward, expect_rows=()):
    """forward, backward: per tensor, bytes of one time; what is not named moves nothing (but the loss, a few bytes)."""
    global passed, failed
    said = zoo(name, *args)
    why = [] if said["checked"] >= 9 else [f"{said['checked']} checks"]
    for row in said["rows"]:
        t = row["tensor"]
        if t.startswith("loss"): continue
        for way, want in ("forward", forward), ("backward", backward):
            want = want.get(t, 0) * times.get(t, 1)
            if abs(row[way + "_bytes"] - want) > 1e-3 * want + (64 * times.get(t, 1) if want else 0):
                why.append(f"{t} {way}: {row[way + '_bytes']:.0f}, the textbook {want:.0f} ({row[way]})")
    for t, key, value in expect_rows:
        found = [r[key] for r in said["rows"] if r["tensor"] == t]
        if found != [value]: why.append(f"{t} {key}: {found}, expected {value}")
    passed, failed = passed + (not why), failed + bool(why)
    print(f"{'FAIL' if why else 'ok  '} {name} on {args[1]}" + "".join("\n    " + w for w in why))


def weights(times_of_bytes): return {t: n * e * times_of_bytes for t, n in block.items()}
def cut(n): return (n - 1) / n


for n in 2, 8:
    dp = f"dp={n}"
    check("dp", ["--mesh", dp], {}, weights(2 * cut(n)), [("weight q", "backward", "all_reduce dp"), ("weight q", "rest", "dp:I"), ("weight q", "use", "dp:R")])
    check("zero1", ["--mesh", dp], weights(cut(n)), weights(cut(n)), [("weight q", "forward", "all_gather dp"), ("weight q", "backward", "reduce_scatter dp")])
    check("zero3", ["--mesh", dp], weights(cut(n)), weights(2 * cut(n)), [("weight q", "backward", "all_gather dp, reduce_scatter dp")])
for r, n in (2, 4), (4, 2):
    check("hsdp", ["--mesh", f"dp_replicate={r},dp_shard={n}"], weights(cut(n)), weights(2 * cut(n) + 2 * cut(r) / n),
          [("weight q", "backward", "all_gather dp_shard, reduce_scatter dp_shard, all_reduce dp_replicate")])
for n in 2, 4:
    sums = {t: 2 * cut(n) * stream for t in ("embedding", "attention out", "down")}
    check("tp", ["--mesh", f"tp={n}"], sums, {"norm": 2 * cut(n) * stream},
          [("down", "rest", "tp:P(sum)"), ("down", "use", "tp:I"), ("norm", "backward", "all_reduce tp"), ("weight up", "rest", "tp:S(0)")])
    half = {t: cut(n) * stream for t in ("embedding", "attention out", "down")}
    check("sp", ["--mesh", f"tp={n}"], {**half, "norm": cut(n) * stream}, {**half, "norm": cut(n) * stream, "weight norms": 2 * cut(n) * c * e},
          [("norm", "forward", "all_gather tp"), ("norm", "backward", "reduce_scatter tp"), ("down", "forward", "reduce_scatter tp")])
    heads = {"q": b * s * h * d * e * cut(n) / n, "k, v": b * s * g * d * e * cut(n) / n, "attention": b * s * h * d * e * cut(n) / n}
    check("ulysses", ["--mesh", f"sp={n}"], heads, {**heads, **weights(2 * cut(n))}, [("q", "forward", "all_to_all sp")])
    keys = {"k, v": b * s * g * d * e * cut(n)}
    check("cp", ["--mesh", f"cp={n}"], keys, {**keys, **weights(2 * cut(n))}, [("k, v", "forward", "all_gather cp"), ("k, v", "backward", "reduce_scatter cp")])
    # a part at a time: there, there again going back, and their gradients all around
    check("ring", ["--mesh", f"cp={n}"], keys, {"k, v": b * s * g * d / n * (e * (n - 1) + 4 * n), **weights(2 * cut(n))}, [("k, v", "backward", f"{n - 1} + {n} (f32) shifts cp")])
# dp and tp together: each as it is alone, on its part
n, m = 2, 4
part = {t: 2 * cut(m) * stream / n for t in ("embedding", "attention out", "down")}
split = {t: 2 * cut(n) * x * e / (1 if t == "weight norms" else m) for t, x in block.items()}
check("all", ["--mesh", f"dp={n},tp={m}"], part, {**split, "norm": 2 * cut(m) * stream / n})
# everything at once is accepted, too, and experts have a mesh of their own
said = zoo("all", "--mesh", "pp=2,dp_replicate=2,dp_shard=2,cp=2,tp=2", "--sp", "--zero", "3", "--ep", "4")
why = "" if said["stages"] == 2 and any(r["rest"] == "efsdp:S(1) ep:S(0)" for r in said["rows"]) and said["tokens_to_experts"] > 0 else "no experts' rows"
passed, failed = passed + (not why), failed + bool(why)
print(f"{'FAIL' if why else 'ok  '} all at once{why and ': ' + why}")
# a stage's bytes: the worst of the first, which has the token table, the last, which has the head, and those between; where pp does not divide the layers, both
# tables count as layers, and an end has one less
def inner(x, end): return sum(n * e * (2 * x + 1 if t == "weight norms" else 2 * x if t == "weight k, v" else 0 if t in ("token table", "weight head") else x) for t, n in block.items()) + end
for pp, most in ((2, inner(2, block["weight head"] * e)), (3, max(inner(2, 0), inner(2, 0) * 1 / 2 + block["weight head"] * e))):
    said = zoo("pp", "--mesh", f"pp={pp},dp=2")
    why = "" if abs(said["backward_bytes"] - most) < 1e-3 * most else f"{said['backward_bytes']}, the textbook {most:.0f}"
    passed, failed = passed + (not why), failed + bool(why)
    print(f"{'FAIL' if why else 'ok  '} the worst of {pp} stages{why and ': ' + why}")
# few heads of k and v, cut over more ranks than there are: along another dim, evenly
g = 4
few = tempfile.NamedTemporaryFile("w", suffix=".model")
few.write(f"layers {L}\nhidden {c}\nffn {f}\nheads {h}\nkv_heads {g}\nhead_width {d}\nvocabulary {v}\nsequence {s}\nbatch {b}\nbytes {e}\n")
few.flush()
said = {r["tensor"]: r for r in zoo("zero3", "--mesh", "dp=8,tp=4", model=few)["rows"]}
for t, n in (("weight q", h), ("weight k, v", g)):
    want = times[t] * c * n * d // 4 * e * cut(8)
    why = "" if abs(said[t]["forward_bytes"] - want) < 1 else f"{said[t]}, the textbook {want:.0f}"
    passed, failed = passed + (not why), failed + bool(why)
    print(f"{'FAIL' if why else 'ok  '} {t} of few heads{why and ': ' + why}")
# every schedule of the stages by its paper's formula, where forward and both halves of the backward cost the same
for p, m in ((2, 4), (4, 8), (4, 6)):
    for row in zoo("pp", "--mesh", f"pp={p}", model=model_of(m))["schedules"]:
        kind = row["schedule"]
        if kind == "interleaved" and m % p:
            why = "" if row.get("refused") else f"interleaved of {m} micro-batches is not refused"
        else:
            bubble = (p - 1) / m / {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 3, "zb-v": 6}[kind]
            flight = {"gpipe": m, "1f1b": p, "zb-h1": p, "zb-v": 2 * p, "interleaved": min(2 * m, (p - 1) * 2 + p + 1)}[kind]
            sent = m * (p * row["chunks"] - 1 - (kind == "zb-v"))
            close = abs(row["bubble"] - bubble) < 1e-6 or (kind == "zb-v" and m < 2 * p - 1)
            why = "" if close and row["in_flight"] == flight and row["messages"] == sent else f"{row}, and {bubble}, {flight}, {sent} are right"
        passed, failed = passed + (not why), failed + bool(why)
        print(f"{'FAIL' if why else 'ok  '} {kind} of {p} stages, {m} micro-batches{why and ': ' + why}")
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
