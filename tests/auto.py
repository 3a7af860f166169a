#!/usr/bin/env python3
"""`mesh auto` against brute force, formulas, `mesh zoo` and `mesh schedule`. tests/auto.py [MESH]; the last line is "N passed, N failed".

    tests/auto.py MESH --table     the table of docs/auto.md: published runs, predicted
"""
import glob, itertools, json, math, os, re, subprocess, sys, tempfile

tool = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1][0] != "-" else "build/mesh"
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
folder = tempfile.TemporaryDirectory()
MODEL = dict(layers=6, hidden=512, ffn=2048, heads=8, kv_heads=8, head_width=64, vocabulary=4096, sequence=256, batch=24, bytes=2, gradient_bytes=2, mlp_matrices=2)
CLUSTER = dict(hosts=3, devices_per_host=4, memory=100000, reserve=0, bandwidth=1000, flops=100, efficiency=0.5, topology="4:0us:100GB/s,*:0us:10GB/s")
results = [0, 0]


def law(name, why):
    """why: what is wrong, a list."""
    results[bool(why)] += 1
    print(f"{'FAIL' if why else 'ok  '} {name}" + "".join("\n    " + w for w in why[:5]), flush=True)


def file_of(name, values):
    path = os.path.join(folder.name, name)
    with open(path, "w") as f: f.writelines(f"{k} {v}\n" for k, v in values.items())
    return path


def auto(model=None, cluster=None, *args):
    files = [m if isinstance(m, str) else file_of(name, {**usual, **(m or {})}) for m, name, usual in ((model, "model", MODEL), (cluster, "cluster", CLUSTER))]
    r = subprocess.run([tool, "auto", "--model", files[0], "--cluster", files[1], "--json", "--top", "100000", *args], capture_output=True, text=True)
    if r.returncode: sys.exit(f"mesh auto {args}: {r.stderr}")
    return json.loads(r.stdout)


def one(model=None, cluster=None, **fix):
    """The prediction of one way; what is not in fix is 1, or 0, or follows."""
    devices = (cluster or {}).get("hosts", CLUSTER["hosts"]) * CLUSTER["devices_per_host"]
    c = dict(tp=1, cp=1, pp=1, ep=1, dp_shard=1, zero=0, sp=0, micro=1, schedule="1f1b", chunks=1, recompute=0)
    c.update(fix)
    c.setdefault("dp", devices // (c["tp"] * c["cp"] * c["pp"]))
    said = auto(model, cluster, "--fix", ",".join(f"{k}={v}" for k, v in c.items()), "--devices", str(c["dp"] * c["tp"] * c["cp"] * c["pp"]))
    assert len(said["rows"]) == 1 and said["tried"] == 1, (fix, said)
    return said["rows"][0]


def divisors(n): return [k for k in range(1, n + 1) if n % k == 0]
def near(a, b, part=1e-6): return abs(a - b) <= part * max(abs(a), abs(b)) + 1e-12


# ---- the search is complete: every way by brute force ----

def ways(m, host, world):
    """Every valid choice, by the rules of docs/auto.md, over all numbers up to the world."""
    experts, flash = m.get("experts", 0), m.get("flash", 0)
    for tp, cp, pp in itertools.product(range(1, world + 1), repeat=3):
        if world % (tp * cp * pp) or host % tp or any(m[x] % tp for x in ("heads", "kv_heads", "ffn")): continue
        dp, layers = world // (tp * cp * pp), m["layers"]
        if (cp > 1 and m["sequence"] % (2 * cp)) or m["batch"] % dp: continue
        whole = layers % pp == 0
        if not whole and ((layers + 2) % pp or (layers + 2) // pp < 2): continue
        stage = (layers if whole else layers + 2) // pp
        for ep in range(1, (experts or 1) + 1):
            # ep lies on the ranks of a stage, which are dp x (cp tp), with other stages between
            if experts and (experts % ep or (world // pp) % ep or not (pp == 1 or dp == 1 or ep % (tp * cp) == 0 or (tp * cp) % ep == 0)): continue
            for shard, sp, micro in itertools.product(divisors(dp), (0, 1), divisors(m["batch"] // dp)):
                if sp and (tp == 1 or (m["sequence"] // cp) % tp): continue
                if not sp and tp > 1 and experts: continue
                count = m["batch"] // dp // micro
                for v, schedule in itertools.product(divisors(stage), ("1f1b", "interleaved", "gpipe", "zb-h1")):
                    if (v > 1) != (schedule == "interleaved") or (pp == 1 and (schedule != "1f1b")): continue
                    if v > 1 and count % pp: continue
                    for zero, again in itertools.product((1, 2, 3) if shard > 1 else (0,), (0, 2) if flash else (0, 1, 2)):
                        yield tp, cp, pp, ep, dp, shard, zero, sp, micro, schedule, v, again


def check_search():
    for change, hosts in (({}, 3), (dict(layers=4, flash=1, batch=8), 2), (dict(heads=6, kv_heads=3, batch=30), 3), (dict(heads=6, kv_heads=6, ffn=1536, layers=2), 3), (dict(sequence=12, batch=16), 4), (dict(layers=10, batch=12), 3)):
        m = {**MODEL, **change}
        want = list(ways(m, 4, 4 * hosts))
        said = auto(m, dict(hosts=hosts))
        got, wanted = {(r["tp"], r["cp"], r["pp"], r["ep"], r["dp"]) for r in said["rows"]}, set(want)
        why = [f"{said['tried']} ways, brute force {len(want)}"] if said["tried"] != len(want) else []
        if got != {w[:5] for w in want}: why.append(f"meshes that differ: {sorted(got ^ {w[:5] for w in want})}")
        names = ("tp", "cp", "pp", "ep", "dp", "dp_shard", "zero", "sp", "micro", "schedule", "chunks", "recompute")
        why += [f"no way of brute force: {r}" for r in said["rows"] if tuple(r[n] for n in names) not in wanted]
        law(f"the search has every way: {change} on {4 * hosts}", why)
    for change, hosts in ((dict(experts=4), 2), (dict(experts=6, layers=4, batch=24), 3)):
        m = {**MODEL, "layers": 2, "batch": 8, "top_k": 2, **change}
        want, said = list(ways(m, 4, 4 * hosts)), auto(m, dict(hosts=hosts))
        law(f"and with {change['experts']} experts", [] if said["tried"] == len(want) else [f"{said['tried']} ways, brute force {len(want)}"])


def check_rows():
    limit = 0.35e9
    for change in ({}, dict(layers=12, batch=48)):
        said = auto(change, dict(memory=limit / 1e9, hosts=2))
        why = [] if 0 < said["too_large"] < said["tried"] else ["the limit limits nothing"]
        steps = [r["step"] for r in said["rows"]]
        if steps != sorted(steps): why.append("not in order")
        for r in said["rows"]:
            if r["state"] + r["activations"] > limit: why.append(f"{r['state'] + r['activations']} bytes")
            parts = r["compute"] + r["memory"] + r["bubble"] + sum(r[a + "_seconds"] for a in ("tp", "cp", "ep", "dp", "pp"))
            if not near(parts, r["step"], 1e-7): why.append(f"parts {parts}, step {r['step']}")
            if r["tp"] * r["cp"] * r["pp"] * r["dp"] != 8: why.append(f"no mesh of 8: {r}")
        every = auto(change, dict(hosts=2))
        for r in every["rows"]:  # what the limit leaves out is what is too large
            kept = [x for x in said["rows"] if all(x[k] == r[k] for k in ("tp", "cp", "pp", "ep"))]
            if kept and kept[0]["step"] < r["step"]: why.append("a limit made a mesh faster")
            if r["state"] + r["activations"] <= limit and (not kept or not near(kept[0]["step"], r["step"])): why.append(f"fits and is not there: {r}")
        law(f"rows: in order, under the limit, sums of their parts {change}", why)


# ---- compute, memory ----

def block(m):
    """Elements of a layer's weights, of the norms, of a table."""
    q, k = m["heads"] * m["head_width"], m["kv_heads"] * m["head_width"]
    return m["hidden"] * (2 * q + 2 * k + m["mlp_matrices"] * m["ffn"]), 2 * m["hidden"], m["vocabulary"] * m["hidden"]


def check_compute():
    why = []
    for change in ({}, dict(causal=1), dict(mlp_matrices=3, ffn=1536, kv_heads=2), dict(dropout=0)):
        m = {**MODEL, **change}
        products, _, table = block(m)
        scores = 4 * m["sequence"] * m["heads"] * m["head_width"] / (2 if m.get("causal") else 1)
        tokens, layer = m["batch"] * m["sequence"], 2 * products + scores
        for again, extra in ((0, 0), (1, m["layers"] * scores), (2, m["layers"] * layer)):
            r = one(change, dict(hosts=1), dp=1, recompute=again)
            want = tokens * (3 * (m["layers"] * layer + 2 * table) + extra) / (100e12 * 0.5)
            if not near(r["compute"], want): why.append(f"{change} recompute {again}: {r['compute']}, {want}")
            if not near(r["hardware_tflops"], want * 50 / r["step"]): why.append(f"{change}: {r['hardware_tflops']} TFLOP/s")
        if any(r[a + "_seconds"] or r[a + "_bytes"] for a in ("tp", "cp", "ep", "dp", "pp")) or r["bubble"]: why.append("one device waits for somebody")
    law("one device computes FLOPs / (peak x efficiency), and waits for nobody", why)
    # Narayanan et al.: 96 B s l h^2 (1 + s/6h + V/16lh) of a step with recomputation
    m, r = MODEL, one({}, dict(hosts=1), dp=1, recompute=2)
    h, s, l, V = m["hidden"], m["sequence"], m["layers"], m["vocabulary"]
    want = 96 * m["batch"] * s * l * h * h * (1 + s / (6 * h) + V / (16 * l * h))
    law("with recomputation: Megatron's formula", [] if near(r["compute"] * 50e12, want) else [f"{r['compute'] * 50e12}, {want}"])


def check_touched():
    m, why = MODEL, []
    products, norms, table = block(m)
    h, t = m["hidden"], m["batch"] * m["sequence"]
    weights = m["layers"] * (products + norms) + norms // 2 + 2 * table
    for change, of_scores, masks in (({}, 9, 2), (dict(flash=1), 0, 2), (dict(dropout=0), 4, 0)):
        layer = (20 + masks) * h + 2 * 2 * m["ffn"] + of_scores * m["heads"] * m["sequence"]
        for micro, added in ((24, 0), (12, 2)):
            r = one(change, dict(hosts=1), dp=1, micro=micro)
            want = (t * (3 * m["layers"] * layer + m["vocabulary"] * (10 + 6)) + weights * (added * 2 * 2 + 2 + 24 + 2)) / 1000e9
            if not near(r["memory"], want): why.append(f"{change}, micro {micro}: {r['memory']}, {want}")
    for tp, sp in (2, 0), (2, 1), (4, 0), (4, 1):
        r = one({}, dict(hosts=1), dp=1, tp=tp, sp=sp, micro=24)
        layer = 22 * h / (tp if sp else 1) + (4 * m["ffn"] + 9 * m["heads"] * m["sequence"]) / tp
        own = (m["layers"] * products + 2 * table) / tp + m["layers"] * norms + norms // 2
        want = (t * (3 * m["layers"] * layer + m["vocabulary"] * 16 / tp) + own * 28) / 1000e9
        if not near(r["memory"], want): why.append(f"tp {tp}, sp {sp}: {r['memory']}, {want}")
    law("what is bound by memory: each kernel's bytes, gradients added, the optimizer", why)


def check_memory():
    m, why = MODEL, []
    products, norms, table = block(m)
    layer, ends = products + norms, 2 * table + norms // 2
    whole = m["layers"] * layer + ends
    for d in 2, 3, 4, 12:
        for zero in 1, 2, 3:
            r = one({}, dict(hosts=3), dp=12, dp_shard=d, zero=zero)
            part = whole / d
            want = {1: 4 * whole + 12 * part, 2: 2 * whole + 14 * part + 2 * layer, 3: 16 * part + 6 * layer}[zero]
            if not near(r["state"], want, 1e-4): why.append(f"ZeRO-{zero} over {d}: {r['state']}, {want}")
    if not near(one({}, dict(hosts=3), dp=12)["state"], 16 * whole): why.append("ZeRO 0")
    for tp in 2, 4:
        r = one({}, dict(hosts=1), tp=tp, dp=1)
        want = 16 * (m["layers"] * (products / tp + norms) + 2 * table / tp + norms // 2)
        if not near(r["state"], want): why.append(f"tp {tp}: {r['state']}, {want}")
    law("states: whole, or a part of each in d", why)
    why, h, a, s = [], m["hidden"], m["heads"], m["sequence"]
    for tp, sp, again in itertools.product((1, 2, 4), (0, 1), (0, 1, 2)):
        if sp and tp == 1: continue
        for change, scores, masks in (({}, 5, 2), (dict(dropout=0), 2, 0)):
            r = one(change, dict(hosts=1), tp=tp, sp=sp, dp=1, recompute=again, micro=2)
            o = tp if sp else 1
            keep = (8 + masks) * h / o + 24 * h / tp + (0 if again == 1 else scores * a * s / tp)  # Korthikanti et al.
            at_work = (8 + masks) * h / o + 24 * h / tp + scores * a * s / tp
            keep = 2 * h / o if again == 2 else keep
            want = 2 * s * (m["layers"] * keep + (at_work - keep if again else 0) + m["vocabulary"] / tp * 6)
            if not near(r["activations"], want): why.append(f"tp {tp} sp {sp} recompute {again} {change}: {r['activations']}, {want}")
    law("activations: s b h (10 + 24/t + 5 a s/(h t)), or less", why)


def check_stages():
    """Of degrees and stages: each device computes its part, the slowest stage's time, the fullest's memory."""
    why = []
    for change, fix in itertools.product((dict(vocabulary=64), dict(vocabulary=16384)), (dict(), dict(tp=2), dict(tp=4, sp=1), dict(cp=2), dict(pp=2), dict(pp=3), dict(pp=4), dict(pp=4, chunks=2, schedule="interleaved"),
                                                                                        dict(pp=2, cp=2, tp=2), dict(pp=4, schedule="gpipe"), dict(pp=4, schedule="zb-h1"))):
        m = {**MODEL, **change, "flash": 1}
        r = one({**change, "flash": 1}, dict(hosts=6), dp=1 if fix.get("pp") else 2, **fix)
        tp, cp, pp, v, count = (r[k] for k in ("tp", "cp", "pp", "chunks", "micro_batches"))
        products, norms, table = block(m)
        layer, head = 2 * products + 4 * m["sequence"] * m["heads"] * m["head_width"], 2 * table
        whole = m["layers"] % (pp * v) == 0
        layers = [m["layers"] // pp if whole else (m["layers"] + 2) // pp - (k == 0) - (k == pp - 1) for k in range(pp)]
        tokens = m["sequence"] / cp
        want = count * tokens / tp * max(3 * (n * layer + (k == pp - 1) * head) for k, n in enumerate(layers)) / 50e12
        if not near(r["compute"], want): why.append(f"{change} {fix}: compute {r['compute']}, {want}")
        flights = {"gpipe": [count] * pp, "zb-h1": [min(pp, count)] * pp, "interleaved": [min(2 * (pp - k - 1) + (v - 1) * pp + 1, v * count) / v for k in range(pp)]}
        flight = flights.get(r["schedule"], [min(pp - k, count) for k in range(pp)])
        outside = tp if r["sp"] else 1
        keep = 10 * m["hidden"] / outside + 24 * m["hidden"] / tp
        room = max(16 * (n * (products / tp + norms) + ((k == 0) + (k == pp - 1)) * table / tp + (k == pp - 1) * norms / 2) + flight[k] * n * tokens * keep
                   + (k == pp - 1) * tokens * m["vocabulary"] / tp * 6 for k, n in enumerate(layers) if k in (0, 1, pp - 1))
        if not near(r["state"] + r["activations"], room): why.append(f"{change} {fix}: {r['state'] + r['activations']} bytes, {room}")
    law("each device computes its part; the slowest stage's time, the fullest's memory", why)


# ---- communication: as mesh zoo has it ----

FLAT = dict(hosts=2, topology="*:0us:10GB/s")  # between levels a plan may move more in less time


def zoo(name, mesh, m, *args):
    path = file_of("zoo", {k: v for k, v in m.items() if k not in ("gradient_bytes",)})
    r = subprocess.run([tool, "zoo", name, "--mesh", mesh, "--model", path, "--topology", FLAT["topology"], "--json", *args], capture_output=True, text=True)
    if r.returncode: sys.exit(f"mesh zoo {name}: {r.stderr}")
    rows = [x for x in json.loads(r.stdout)["rows"] if x["tensor"] != "loss"]
    def of(wanted): return sum(x["forward_bytes"] + x["backward_bytes"] for x in rows if wanted(x["tensor"]))
    def weight(t): return t.startswith("weight") or t == "token table"
    return of(lambda t: not weight(t) and t != "k, v"), of(lambda t: t == "k, v"), of(weight)


def check_zoo():
    why = []
    for name, mesh, args, fix in (("tp", "tp=4", [], dict(tp=4, dp=1)), ("sp", "tp=4", ["--sp"], dict(tp=4, dp=1, sp=1)), ("sp", "tp=2", ["--sp"], dict(tp=2, dp=1, sp=1)),
                                  ("cp", "cp=4", [], dict(cp=4, dp=1)), ("dp", "dp=4", [], dict(dp=4)), ("zero1", "dp=4", [], dict(dp=4, dp_shard=4, zero=1)),
                                  ("zero1", "dp=8", [], dict(dp=8, dp_shard=8, zero=1)), ("hsdp", "dp_replicate=2,dp_shard=4", [], dict(dp=8, dp_shard=4, zero=3)),
                                  ("all", "dp=2,cp=2,tp=2", ["--sp"], dict(dp=2, cp=2, tp=2, sp=1)), ("all", "dp=2,tp=4", [], dict(dp=2, tp=4))):
        for micro in 1, 2:
            m = {**MODEL, "batch": 16, "layers": 4}
            r = one(m, FLAT, micro=micro, **fix)
            count = r["micro_batches"]
            tp, cp, dp = zoo(name, mesh, {**m, "batch": micro * fix["dp"]}, *args)
            for axis, want in ("tp", tp * count), ("cp", cp * count), ("dp", dp * (count if fix.get("zero") == 3 else 1)):
                if not near(r[axis + "_bytes"], want, 1e-3): why.append(f"{name} on {mesh}, micro-batches of {micro}, {axis}: {r[axis + '_bytes']:.0f}, mesh zoo {want:.0f}")
    law("bytes are mesh zoo's", why)
    r = one(dict(batch=16, experts=4, top_k=2, layers=4), dict(hosts=1), dp=4, ep=4, micro=2)
    want = 4 * 4 * (2 * 256 * 2 * 512 * 2) * 3 / 4 * r["micro_batches"]  # layers x ways x (tokens top_k hidden bytes) x 3/4
    law("experts: four all-to-alls a layer", [] if near(r["ep_bytes"], want, 1e-3) else [f"{r['ep_bytes']}, {want}"])


# ---- schedules: as mesh schedule has them ----

def clock(kind, p, m, v, cost):
    args = [tool, "schedule", "--kind", kind, "-p", str(p), "-m", str(m), *(["-v", str(v)] if v > 1 else [])]
    scale = 999000 / max(cost.values())
    for k, x in cost.items(): args += ["--" + k, str(round(x * scale))]
    out = subprocess.run(args, capture_output=True, text=True).stdout
    return int(re.search(r": (\d+) in all", out).group(1)) / scale, [int(x.split()[1]) for x in out.split("idle\n")[1].strip().split("\n")]


def check_schedules():
    bubble, time, peaks = [], [], []
    for kind, p, v, micro in itertools.product(("1f1b", "gpipe", "zb-h1", "interleaved"), (2, 4, 6), (1, 2, 3), (1, 2)):
        if (v > 1) != (kind == "interleaved"): continue
        m = dict(layers=p * v * 2, batch=24)
        for network in "10GB/s", "1GB/s":
            r = one(m, dict(hosts=3, topology=f"1:0us:100GB/s,*:0us:{network}"), pp=p, dp=1, chunks=v, schedule=kind, micro=micro)
            n, f, b, w = int(r["micro_batches"]), r["forward"], r["backward"], r["weight"]
            what = f"{kind} p {p} m {n} v {v}, send {r['send'] / f:.2f} of a forward"
            want = (p - 1) * (f + b - 2 * w) if kind == "zb-h1" else (p - 1) / (v * n) * n * (f + b)
            if not near(r["bubble"], want): bubble.append(f"{what}: {r['bubble']}, {want}")
            every, flights = clock(kind, p, n, v, dict(forward=f / v, backward=(b - w) / v, weight=w / v, send=r["send"]))
            mine = n * (f + b) + r["bubble"] + r["pp_seconds"]
            if abs(mine / every - 1) > (0.02 if r["send"] * v < f else 0.10): time.append(f"{what}: {mine}, the clock {every}")
            if round(r["in_flight"] * v, 6) != max(flights): peaks.append(f"{what}: {r['in_flight'] * v}, the clock's {flights}")
    law("bubble: (p - 1) / (v m)", bubble)
    law("micro-batches, bubble and sends take what the clock of mesh schedule says", time)
    law("in flight: what mesh schedule counts", peaks)


# ---- what faster machines do ----

def check_faster():
    m, slow = dict(layers=4, batch=16), dict(hosts=2, topology="4:3us:20GB/s,*:8us:2GB/s")
    before = auto(m, slow)["rows"]
    for name, change in (("network", dict(topology="4:3us:40GB/s,*:8us:4GB/s")), ("latency", dict(topology="4:1us:20GB/s,*:2us:2GB/s")), ("peak", dict(flops=200)), ("memory", dict(bandwidth=2000))):
        after = {tuple(r[k] for k in ("tp", "cp", "pp", "ep")): r["step"] for r in auto(m, {**slow, **change})["rows"]}
        law(f"a faster {name} makes no mesh slower, and one faster", [f"{r} became {after[k]}" for r in before for k in [tuple(r[x] for x in ("tp", "cp", "pp", "ep"))]
            if after[k] > r["step"] * (1 + 1e-9)] + (["none is faster"] if after[min(after, key=after.get)] >= before[0]["step"] else []))


# ---- published runs ----

def published():
    """[(model, cluster, what --fix leaves of what they could choose)]"""
    size = lambda f: float(re.search(r"([\d.]+)b", f).group(1))
    models = sorted(glob.glob(os.path.join(root, "examples/models/*.model")), key=lambda f: ("llama" in f, size(os.path.basename(f)), "128k" in f, f[::-1]))
    return [(f, os.path.join(root, "examples/clusters", "llama3.cluster" if "llama" in f else "selene.cluster"),
             "sp=1,recompute=0" if "llama" in f else "cp=1,zero=0,sp=0,recompute=2") for f in models]


def place(x, said): return f"{x['place']} of {said['meshes']}" if x["fits"] else f"too large ({(x['run']['state'] + x['run']['activations']) / 1e9:.0f} of {said['limit'] / 1e9:.0f} GB)"


def table(check):
    lines = ["| run | tp, cp, pp, dp | published | predicted | ratio | place | place, alike | the best of the list |", "|---|---|---|---|---|---|---|---|"]
    for model, cluster, fix in published():
        said, alike = auto(model, cluster), auto(model, cluster, "--fix", fix)
        x, y, best = said["published"], alike["published"], said["rows"][0]
        check(os.path.basename(model), said, x)
        run = x["run"]
        lines.append(f"| {os.path.basename(model)[:-6]} | {run['tp']}, {run['cp']}, {run['pp']}, {run['dp']} | {x['tflops']:g} | {x['predicted']:.1f} | {x['ratio']:.3f} | {place(x, said)} | {place(y, alike)} | "
                     f"tp {best['tp']} cp {best['cp']} pp {best['pp']} dp {best['dp']}, zero {best['zero']}, {run['step'] / best['step']:.2f} x |")
    return "\n".join(lines)


def check_limits():
    limit = dict(memory=0.13, hosts=2)  # the first way tried needs more
    said, best = auto(dict(published_tp=2, published_zero=1, published_tflops=1), limit), auto({}, limit, "--fix", "tp=2,zero=1")
    x = said["published"]
    law("what a published run does not say is chosen as the search does", [] if x["fits"] and near(x["run"]["step"], best["rows"][0]["step"], 1e-8) else [f"{x['run']}, {best['rows'][0]}"])
    model, why = os.path.join(root, "examples/models/llama3-405b-8k-8192.model"), []
    def refused(memory):
        files = ["--model", model, "--cluster", file_of("cluster", {**CLUSTER, "hosts": 1024, "devices_per_host": 8, "memory": memory})]
        r = subprocess.run([tool, "auto", *files, "--fix", "tp=8,cp=1,pp=16"], capture_output=True, text=True)
        return float(re.search(r"needs ([0-9.]+) GB, [0-9.]+ more than there are", r.stderr).group(1)) if r.returncode else 0
    least = refused(1)
    if not least or refused(least + 0.06) or not refused(least - 0.06): why.append(f"{least} GB are said to be the least")
    law("where nothing fits, the least that would", why)


def check_published():
    why = []
    def check(name, said, x):
        ahead = [r for r in said["rows"] if r["step"] < x["run"]["step"] and any(r[k] != x["run"][k] for k in ("tp", "cp", "pp", "ep"))]
        if x["place"] != len(ahead) + 1: why.append(f"{name}: place {x['place']}, {len(ahead)} are ahead")
        if x["fits"] and said["rows"][0]["step"] > x["run"]["step"]: why.append(f"{name}: the best is slower than what was published")
        if not 0.75 < x["ratio"] < 1.25: why.append(f"{name}: {x['ratio']}")
    made = table(check)
    law("published runs: the best is no slower, places are counted, to a quarter", why)
    law("docs/auto.md has the table that --table prints", [] if made in open(os.path.join(root, "docs/auto.md")).read() else ["it prints:\n" + made])


if "--table" in sys.argv:
    print(table(lambda *_: None))
    sys.exit()
for check in (check_search, check_rows, check_compute, check_touched, check_memory, check_stages, check_zoo, check_schedules, check_faster, check_limits, check_published): check()
print(f"{results[0]} passed, {results[1]} failed")
sys.exit(results[1] > 0)
