#!/usr/bin/env python3
"""train_gpt: every parallelism alone, in pairs and all at once trains as one rank does; a wrong table is refused, or differs.

    tests/train.py BUILD [--slips]     one line each; the last line is "N passed, N failed"
"""
import array, json, os, random, re, shutil, subprocess, sys, tempfile

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
build = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "build"
work = tempfile.mkdtemp(prefix="mesh-train-")
failed = passed = 0

SMALL = "--sample 5 --text README.md --steps 20 --batch 8 --context 24 --channels 24 --heads 6 --layers 2"
ONE_HEAD_OF_FOUR = SMALL.replace("--heads 6", "--heads 4")
COMBINATIONS = [  # ranks, what
    (2, "dp=2"), (2, "dp_replicate=2 --micro 4"), (2, "dp_shard=2 --zero 0"), (2, "dp_shard=2 --zero 1 --micro 2"),
    (2, "dp_shard=2 --zero 2 --micro 2"), (2, "dp_shard=2 --zero 3 --micro 2"), (2, "cp=2"), (3, "cp=3"), (2, "cp=2 --ulysses"), (2, "cp=2 --ring"), (4, "cp=4 --ring"),
    (2, "tp=2"), (3, "tp=3"), (2, "tp=2 --sp"), (3, "tp=3 --sp"), (1, "dp=1 --sp --ulysses --zero 3 --micro 8"),
    (4, "dp=2,dp_shard=2 --zero 3"), (4, "dp=2,cp=2"), (4, "dp=2,tp=2"), (4, "tp=2,dp=2 --sp"), (4, "dp_shard=2,cp=2 --zero 1"),
    (4, "dp_shard=2,cp=2 --zero 3 --ulysses"), (4, "dp_shard=2,tp=2 --zero 3 --sp"), (4, "cp=2,tp=2"), (4, "cp=2,tp=2 --sp"),
    (6, "cp=2,tp=3 --sp --ulysses"), (8, "dp_shard=2,cp=2,tp=2 --sp --zero 3 --ring --micro 2"), (4, "dp_shard=4 --zero 3"),
    (8, "dp_replicate=2,dp_shard=2,cp=2 --zero 2 --micro 2"), (8, "dp_shard=2,cp=2,tp=2 --sp --zero 3 --micro 2"),
    (8, "dp_shard=2,tp=2,cp=2 --zero 3"), (12, "dp=2,cp=2,tp=3 --sp --ulysses"), (8, "dp_shard=8 --zero 3"),
    (2, "pp=2"), (2, "pp=2 --micro 4"), (3, "pp=3 --micro 4 --schedule gpipe"), (2, "pp=2 --micro 4 --schedule interleaved --chunks 2"),
    (2, "pp=2 --micro 4 --schedule zb-h1"), (2, "pp=2 --micro 8 --schedule zb-v"), (4, "pp=4 --micro 8 --schedule zb-h1"),
    (4, "pp=2,dp_shard=2 --micro 4 --schedule zb-h1 --zero 2"), (4, "pp=2,tp=2 --micro 4 --schedule zb-v --sp"), (8, "pp=2,dp_shard=2,cp=2 --micro 4 --schedule zb-v --zero 3 --ring"),
    (16, "pp=2,dp_shard=2,cp=2,tp=2 --sp --zero 3 --micro 4 --schedule zb-v"),
    (4, "pp=2,tp=2 --micro 2 --sp"), (4, "dp_shard=2,pp=2 --zero 3 --micro 4"), (4, "cp=2,pp=2 --zero 1 --micro 2 --ulysses"),
    (8, "dp=2,pp=2,tp=2 --micro 4"), (8, "pp=4,dp_shard=2 --zero 2 --micro 4"),
    (16, "pp=2,dp_shard=2,cp=2,tp=2 --sp --zero 3 --micro 4 --schedule interleaved --chunks 2"),
    (16, "pp=2,dp_replicate=2,dp_shard=2,tp=2 --sp --zero 2 --micro 2"),
    (16, "dp_replicate=2,dp_shard=2,cp=2,tp=2 --sp --zero 3 --micro 2"), (16, "tp=2,cp=2,dp_shard=2,dp_replicate=2 --zero 1"),
]

# as many choices of experts as these have, all by more than 1e-3 between the last score chosen and the next
EXPERTS = f"--sample 5 --text {work}/words.txt --steps 20 --batch 8 --context 24 --channels 24 --heads 4 --layers 2 --experts 4 --seed 6"
WITH_EXPERTS = [
    (2, "dp=2"), (2, "tp=2"), (2, "tp=2 --ep 2"), (2, "tp=2 --ep 2 --sp"), (2, "cp=2 --ep 2"), (2, "cp=2 --ep 2 --ring"), (2, "dp_shard=2 --ep 2"),
    (2, "dp_shard=2 --zero 3 --micro 2"), (4, "dp_shard=4 --ep 2 --zero 1"), (4, "dp_shard=4 --ep 4 --zero 2 --micro 2"),
    (4, "dp_replicate=2,dp_shard=2 --ep 2 --zero 3"), (4, "pp=2,dp_shard=2 --ep 2 --micro 4"), (4, "dp_shard=2,tp=2 --ep 2 --sp --zero 3"),
    (4, "cp=2,tp=2 --ep 4 --ulysses"), (8, "dp_shard=2,cp=2,tp=2 --ep 4 --sp --zero 3 --micro 2"), (8, "tp=2,cp=2,dp_shard=2 --ep 2 --zero 2"),
    (16, "pp=2,dp_shard=2,cp=2,tp=2 --ep 4 --sp --zero 3 --micro 4 --schedule gpipe"),
    (4, "pp=2,dp_shard=2 --ep 2 --micro 4 --schedule zb-h1 --zero 2"),
    (16, "pp=2,dp_replicate=2,dp_shard=2,tp=2 --ep 2 --zero 1 --micro 2"), (16, "dp_replicate=2,dp_shard=2,cp=2,tp=2 --ep 4 --sp --ring --zero 3 --micro 2"),
]

TABLE, NET = "examples/train_gpt_table.h", "examples/train_gpt.c"
SLIPS = [  # name, file, text, instead, ranks, what, what it has to say (None: the losses differ)
    ("bias on every rank", NET, "dev->linear(data(&s->part1.t), data(&s->att.t), P(g, w, PROJ_W), NULL,",
     "dev->linear(data(&s->part1.t), data(&s->att.t), P(g, w, PROJ_W), P(g, w, PROJ_B),", 2, "tp=2", None),
    ("a bias before the sum, by the table", TABLE, 'made("the product with proj", &a->part,', 'made("the product with proj", &a->flow,',
     2, "tp=2", "the product with proj makes"),
    ("norm weights whole and invariant beside a cut sequence", TABLE,
     "return o->sp ? mesh_replicate() : mesh_invariant();", "(void)o; return mesh_invariant();", 2, "tp=2 --sp", "the table is wrong"),
    ("norm weights replicated beside an invariant stream", TABLE,
     "return o->sp ? mesh_replicate() : mesh_invariant();", "(void)o; return mesh_replicate();", 2, "tp=2", "the table is wrong"),
    ("no sum before the column linears, going back", TABLE, "a->flow_whole = activation(3, shape, mesh_replicate());",
     "a->flow_whole = activation(3, shape, mesh_invariant());", 2, "tp=2", "the table is wrong"),
    ("partial sums taken for whole ones", TABLE, "a->part = activation(3, shape, mesh_partial(MESH_SUM));",
     "a->part = activation(3, shape, mesh_replicate());", 2, "tp=2", "the product with proj makes"),
    ("keys and values of the own positions only", TABLE, 'keys = with(a->heads, "cp", mesh_replicate());', "keys = a->heads;",
     2, "cp=2", "the table is wrong: attention"),
    ("the sum of the ranks' means", NET, "(float)(1 / ((double)g->o.batch * g->o.context))", "(float)(1.0 / r->each)", 2, "dp=2", None),
    ("a backward reduction left out", NET, "follow(s->to_whole2.backward);", "", 2, "tp=2", None),
    ("replicated gradients that are not summed", TABLE, "check(mesh_gradient_of(&p->use_grad, &p->use, MESH_F32, NULL, &err), &err);",
     "p->use_grad = p->use;", 2, "dp=2", None),
    ("gradients of micro-batches written over each other", TABLE, "p->rest_grad.add = g->o.zero >= 2;", "p->rest_grad.add = 0;",
     2, "dp_shard=2 --zero 2 --micro 2", None),
    ("a slot that is not cleared", TABLE, "dev->zero(g->grad_slot[segment & 1], g->slot_bytes);", "", 2, "dp_shard=2 --zero 3 --layers 3", None),
    ("weights a layer late", TABLE, "must(mesh_buckets_wait(b, listed(g, segment, back)));", "if (!ahead) must(mesh_buckets_wait(b, listed(g, segment, back)));",
     2, "dp_shard=2 --zero 3", None),
    ("a gradient left out of the norm", NET, "mesh_norm(&world, r->grads, r->ngrads, norm)", "mesh_norm(&world, r->grads, r->ngrads - 1, norm)", 2, "tp=2", None),
    ("the loss counted by every rank of tp", NET, 'if (mesh_comm_index(&comm, "tp") > 0) dev->zero(r->loss, sizeof loss);', "",
     2, "tp=2", None),
    ("positions from the start on every rank", TABLE, 'l = with(l, "cp", mesh_shard(0));', "", 2, "cp=2", "the table is wrong: adding positions"),
    ("queries from the start on every rank", NET, "d.first_query = (int)q.offset[1];", "d.first_query = 0;", 2, "cp=2", None),
    ("a real column taken for padding", NET, "l.logits = logits, l.targets", "l.logits = logits, l.vocabulary = VOCAB - 1, l.targets",
     2, "tp=2", None),
    ("gradients handed on before the last micro-batch's weights", NET, "if (last || g->o.zero >= 2) must(mesh_buckets_wait(&g->grads, -1));",
     "if (g->o.zero >= 2) must(mesh_buckets_wait(&g->grads, -1));", 2, "pp=2 --micro 4 --schedule zb-h1", "ready in this round"),
    ("the weights' half of a micro-batch left out", NET, "segment_weights(g, a, k, tokens);\n", "if (input) segment_weights(g, a, k, tokens);\n",
     2, "pp=2 --micro 4 --schedule zb-h1", None),
    ("the stream's gradient as it went on to grow", NET, "dev->bias_backward(G(g, w, PROJ_B), data(&s->sum1.g), rows, C);",
     "dev->bias_backward(G(g, w, PROJ_B), data(&a->x.g), rows, C);", 2, "tp=2", None),
    ("memory of one layer's gradients for all, where the weights' half is later", TABLE, "if (a->splits) return device_memory(nbytes);", "",
     2, "pp=2 --micro 4 --schedule zb-h1 --layers 4", None),
    ("the schedule's stages in a loop where they are a V", NET, "mesh_schedule_stage(&r->schedule, index, k)", "k * p + index", 2, "pp=2 --micro 4 --schedule zb-v --layers 4", None),
    ("a loss that is no number", NET, "must(mesh_copy(&comm, &loss, r->loss, sizeof loss));", "*norm = sqrt(-*norm), loss = *norm;", 2, "dp=2", None),
    ("the router's weights whole and invariant beside cut tokens", TABLE, """if (r->cut == 'S') return with(l, "tp", mesh_replicate());""",
     """if (r->cut == 'S') return with(l, "tp", mesh_invariant());""", 2, "tp=2 --ep 1", "the table is wrong: the router"),
    ("experts' gradients of the own tokens only", TABLE, "if (r->cut == 'X') return experts_layout(n, shape, mesh_replicate());",
     "if (r->cut == 'X') return experts_layout(n, shape, mesh_invariant());", 2, "dp_shard=2 --ep 1", "the table is wrong: an expert's first product"),
    ("one slot for all layers", TABLE, "s->slot = a->slot++;", "s->slot = a->slot;", 2, "dp_shard=2 --ep 2", "slot 0 is empty"),
    ("tokens' gradients through the router alone", NET, "dev->residual(data(&s->whole2.g), through, NULL, tokens, C);", "", 2, "dp_shard=2 --ep 2", None),
    ("the first expert's bias for all of a rank's", NET, "P(g, w, EACH_UP_B) + x.up_b, x.rows", "P(g, w, EACH_UP_B), x.rows", 2, "dp_shard=2 --ep 2", None),
    ("experts' gradients added where the second expert's belong", NET, "G(g, w, EACH_DOWN_B) + x.down_b, x.grad_out", "G(g, w, EACH_DOWN_B), x.grad_out", 2, "tp=2 --ep 2", None),
    ("the norm of the first chunk only", NET, "mesh_norm(&world, r->grads, r->ngrads, norm)", "mesh_norm(&world, r->grads, r->stage[0].n, norm)",
     2, "pp=2 --micro 4 --schedule zb-v --layers 4", None),
]


def told(ok, name, why=""):
    global passed, failed
    if ok: passed += 1
    else: failed += 1
    print(("ok   " if ok else "FAIL ") + name + ("" if ok else "\n" + why), flush=True)


def train(binary, ranks, what, model, against=None, log=None, simulate=False):
    command = [binary] + model.split() + (["--mesh"] + what.split() if what else [])
    if simulate: command += ["--simulate", str(ranks)]
    elif ranks > 1: command = [f"{build}/mesh", "run", "-n", str(ranks), "--"] + command
    if against: command += ["--against", against]
    if log: command += ["--log", log]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, text=True, errors="replace")
    return run.returncode, run.stdout


def combinations():
    logs = {}
    for ranks, what in COMBINATIONS:
        model = ONE_HEAD_OF_FOUR if ranks in (4, 8, 16) else SMALL
        if "pp=" in what: model = model.replace("--layers 2", "--layers 4")
        if model not in logs:
            logs[model] = f"{work}/{len(logs)}.csv"
            train(f"{build}/train_gpt", 1, "", model, log=logs[model])
        code, said = train(f"{build}/train_gpt", ranks, what, model, logs[model])
        told(code == 0 and "largest relative difference" in said, f"train_gpt on {ranks}: {what}", said[-1500:])
        code, said = train(f"{build}/train_gpt", ranks, what, model, logs[model], simulate=True)
        told(code == 0 and "largest relative difference" in said, f"train_gpt on {ranks} that are simulated: {what}", said[-1500:])
    code, said = train(f"{build}/train_gpt", 2, "dp=2 --steps 21", SMALL, logs[SMALL])
    told(code != 0 and "has 20 of these 21 steps" in said, "train_gpt --against a run of fewer steps", said[-1500:])


def textbook():
    """What a step sends, counted by the transport where links only have a bandwidth, is what each strategy's book says: of the rank that is shown."""
    B, T, C, V, F, L, f = 8, 24, 24, 256, 96, 2, 4
    vectors = L * 6 * C + 2 * C  # norms, and biases of what tp does not cut
    cut = V * C + L * (3 * C * C + 3 * C + C * C + 2 * C * F + F) + C * V
    P, x, rows = (cut + vectors + T * C) * f, B * T * C * f, B * T * 12  # all parameters; the residual stream; the loss's rows
    scale = lambda n: (n - 1) / n
    dp = lambda n, bytes: 2 * scale(n) * bytes
    tp = lambda n, x: (8 * L + 4) * scale(n) * x  # an all_reduce after each row linear and before each column linear going back; embedding and head
    apart = P - T * C * f  # along cp each rank has its own positions
    books = [
        (2, "dp=2", dp(2, P)), (4, "dp=4 --micro 2", dp(4, P)), (4, "dp_shard=4 --zero 1", 2 * scale(4) * P), (4, "dp_shard=4 --zero 2 --micro 2", 3 * scale(4) * P),
        (4, "dp_shard=4 --zero 3 --micro 2", 6 * scale(4) * P), (4, "dp_replicate=2,dp_shard=2 --zero 3", 3 * scale(2) * P + dp(2, P / 2)),
        (3, "tp=3", tp(3, x) + rows), (2, "tp=2", tp(2, x) + rows), (3, "tp=3 --sp", tp(3, x) + dp(3, vectors * f) + rows),
        (4, "cp=4", 2 * 2 * L * scale(4) * x + dp(4, apart)), (4, "cp=4 --ulysses --heads 4", 8 * L * scale(4) * x / 4 + dp(4, apart)),
        (4, "cp=4 --ring", L * (2 * 3 + 2 * 3 + 2 * 4) * x / 4 + dp(4, apart)),  # k and v there, there again going back, their gradients all around
        (2, "pp=2", x), (2, "pp=2 --micro 4 --schedule gpipe", x), (2, "pp=2 --layers 4 --micro 4 --schedule interleaved --chunks 2", 3 * x),
        (4, "dp=2,tp=2", tp(2, x / 2) + rows / 2 + dp(2, cut * f / 2 + vectors * f + T * C * f)),
    ]
    for ranks, what, book in books:
        code, said = train(f"{build}/train_gpt", ranks, what + " --topology *:0us:1GB/s", SMALL, simulate=True)
        sent = re.search(r"([\d.]+) KB sent", said)
        told(code == 0 and sent and abs(float(sent[1]) * 1000 - book) <= 0.012 * book, f"train_gpt sends what the book says of {what}: {book:.0f} bytes",
             said[-1500:])
    # with ZeRO 3 on 8 a rank has an eighth, and what 64-byte alignment adds: of weights; gradients and two moments are laid out alike
    code, said = train(f"{build}/train_gpt", 8, "dp_shard=8 --zero 3", SMALL, simulate=True)
    rest = re.search(r"(\d+) parameters at rest", said)
    told(rest and P / f / 8 <= int(rest[1]) <= P / f / 8 + 16 * (12 * L + 5), "train_gpt --zero 3 on 8: an eighth at rest", said[-1500:])
    # and what the plans say, the loss and the norm beside: two numbers of f64 to each partner, and the loss's rows
    for ranks, what, more in ((2, "dp=2", 16), (2, "tp=2", 16 + rows), (2, "dp_shard=2 --zero 3", 16), (4, "cp=4 --ring", 32),
                              (4, "pp=2,dp=2 --layers 4 --micro 2 --schedule interleaved", 32 + 3 * x / 2), (2, "pp=2 --layers 4 --micro 2 --schedule zb-v", 16 + 2 * x)):
        code, said = train(f"{build}/train_gpt", ranks, what + " --explain", SMALL)
        plans = re.search(r"moves most: (\d+)", said)
        sent = re.search(r"([\d.]+) KB sent", said)
        told(code == 0 and plans and sent and abs(float(sent[1]) * 1000 - int(plans[1]) - more) <= 0.01 * (int(plans[1]) + more),
             f"train_gpt --explain on {what}: the plans' bytes are sent", said[-3000:])


def words():
    """Text that nobody edits."""
    chance = random.Random(1)
    some = ["".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(2, 7))) for _ in range(200)]
    with open(f"{work}/words.txt", "w") as f: f.write(" ".join(chance.choice(some) for _ in range(3000)))


def with_experts():
    log = f"{work}/experts.csv"
    code, said = train(f"{build}/train_gpt", 1, "", EXPERTS, log=log)
    closest = re.search(r"closest choice of an expert: (\S+)", said)
    told(code == 0 and closest and float(closest[1]) > 1e-3, "train_gpt --experts: each choice by more than 1e-3", said[-1500:])
    for ranks, what in WITH_EXPERTS:
        code, said = train(f"{build}/train_gpt", ranks, what, EXPERTS, log)
        told(code == 0 and "largest relative difference" in said, f"train_gpt --experts on {ranks}: {what}", said[-1500:])
        code, said = train(f"{build}/train_gpt", ranks, what, EXPERTS, log, simulate=True)
        told(code == 0 and "largest relative difference" in said, f"train_gpt --experts on {ranks} that are simulated: {what}", said[-1500:])
    # all of them are asked: then it is known what travels
    for ranks, what in ((2, "dp_shard=2 --ep 2"), (4, "dp_shard=4 --ep 4 --zero 3")):
        code, said = train(f"{build}/train_gpt", ranks, what + " --top-k 4 --explain", EXPERTS)
        plans = re.search(r"moves most: (\d+)", said)
        sent = re.search(r"([\d.]+) KB sent", said)
        told(code == 0 and plans and sent and abs(float(sent[1]) * 1000 - int(plans[1]) - 16 * (ranks - 1)) <= 0.002 * int(plans[1]),
             f"train_gpt --experts --explain on {what}: what was said is sent", said[-3000:])
    saved = f"{work}/experts"
    code, said = train(f"{build}/train_gpt", 8, f"dp_shard=2,cp=2,tp=2 --ep 4 --zero 3 --steps 10 --save {saved}", EXPERTS, log)
    told(code == 0, "train_gpt --experts --save on 8, after 10 steps", said[-1500:])
    for ranks, what in ((1, "dp=1"), (4, "pp=2,tp=2 --ep 2 --micro 2"), (2, "dp_shard=2 --zero 3")):
        code, said = train(f"{build}/train_gpt", ranks, f"{what} --resume {saved}", EXPERTS, log)
        told(code == 0 and "largest relative difference" in said, f"train_gpt --experts --resume on {ranks}: {what}", said[-1500:])


def weights(folder):
    """Every tensor of a checkpoint, as floats by name."""
    index = json.load(open(f"{folder}/model.safetensors.index.json"))
    found = {}
    for file in set(index["weight_map"].values()):
        raw = open(f"{folder}/{file}", "rb").read()
        size = int.from_bytes(raw[:8], "little")
        for name, t in json.loads(raw[8:8 + size]).items():
            if name == "__metadata__": continue
            a, b = t["data_offsets"]
            found[name] = array.array("f", raw[8 + size + a:8 + size + b])
    return found


def checkpoints():
    """Saved on one mesh, gone on from on another; after 20 steps the parameters are one rank's."""
    model = ONE_HEAD_OF_FOUR.replace("--layers 2", "--layers 4")
    log, one = f"{work}/one.csv", f"{work}/one"
    train(f"{build}/train_gpt", 1, "", f"{model} --save {one}", log=log)
    want = weights(one)
    half = f"{work}/half"
    code, said = train(f"{build}/train_gpt", 8, f"pp=2,dp_shard=2,tp=2 --sp --zero 3 --micro 2 --steps 10 --save {half}", model, log)
    told(code == 0, "train_gpt --save on 8, after 10 steps", said[-1500:])
    for ranks, what in ((1, "dp=1"), (4, "cp=2,tp=2 --sp"), (3, "pp=3 --micro 2"), (2, "pp=2 --micro 4 --schedule zb-v"), (8, "dp_shard=8 --zero 3"), (4, "tp=4")):
        then = f"{work}/then"
        shutil.rmtree(then, ignore_errors=True)
        code, said = train(f"{build}/train_gpt", ranks, f"{what} --resume {half} --save {then}", model, log)
        has = weights(then) if code == 0 else {}
        most = max((max(map(lambda a, b: abs(a - b), want[n], has[n])) for n in want if "." in n and n.count(".") == 1), default=9) \
            if has.keys() == want.keys() else 9
        told(code == 0 and most < 5e-6, f"train_gpt --resume on {ranks}: {what}: losses, and parameters within 5e-6", f"{most}\n{said[-1500:]}")
    then = f"{work}/then.csv"
    train(f"{build}/train_gpt", 2, f"dp=2 --resume {half}", model, log=then)
    code, said = train(f"{build}/train_gpt", 2, f"tp=2 --resume {half}", model, then)
    told(code == 0 and "largest relative difference" in said, "train_gpt --resume --against another that was resumed", said[-1500:])
    code, said = train(f"{build}/train_gpt", 2, "tp=2", model, then)
    told(code != 0 and "has 10 of these 20 steps" in said and "by more than rounding" not in said, "train_gpt --against one that was resumed", said[-1500:])
    code, said = train(f"{build}/train_gpt", 2, f"tp=2 --resume {half}", model.replace("--channels 24", "--channels 32"), None)
    told(code != 0 and "is f32 [256,24] in" in said, "train_gpt --resume of another model is refused", said[-1500:])


def slips():
    log = f"{work}/slips.csv"
    code, said = train(f"{build}/train_gpt", 1, "", SMALL, log=log)
    library = f"{work}/library.o"
    doors = ("mesh_parallel.h", "mesh_checkpoint.h", "transports/mesh_sim.h", "transports/mesh_socket.h")
    open(f"{work}/library.c", "w").write("#define MESH_IMPLEMENTATION\n" + "".join(f'#include "{os.getcwd()}/{d}"\n' for d in doors))
    subprocess.run(["cc", "-std=c99", "-O1", "-w", "-c", f"{work}/library.c", "-o", library], check=True)
    for name, file, text, instead, ranks, what, says in SLIPS:
        source = open(file).read()
        flat = re.sub(r"\s+", r"\\s+", re.escape(text).replace(r"\ ", " ").replace("\\\n", " "))
        found = re.findall(flat, source)
        if len(found) != 1:
            told(False, f"slip: {name}", f"its text stands {len(found)} times in {file}")
            continue
        folder = f"{work}/examples"
        os.makedirs(folder, exist_ok=True)
        for f in ["train_gpt.c"] + [f for f in os.listdir("examples") if f.endswith(".h")]:
            body = open(f"examples/{f}").read()
            if f"examples/{f}" == file: body = re.sub(flat, lambda m: instead, body)
            body = body.replace("#define MESH_IMPLEMENTATION\n", "")  # the library is compiled once
            open(f"{folder}/{f}", "w").write(body.replace('"../', f'"{os.getcwd()}/'))
        binary = f"{work}/slip"
        made = subprocess.run(["cc", "-std=c99", "-O0", "-w", f"{folder}/train_gpt.c", library, "-o", binary, "-lpthread", "-lm"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode:
            told(False, f"slip: {name}", made.stdout[-2000:])
            continue
        model = EXPERTS if "--ep" in what else SMALL if "--layers" not in what else SMALL.replace("--layers 2", "")
        against = log
        if model != SMALL:
            against = f"{work}/other.csv"
            layers = re.search("--layers [0-9]+", what)
            train(f"{build}/train_gpt", 1, "", model + (" " + layers[0] if model != EXPERTS else ""), log=against)
        code, said = train(binary, ranks, what, model, against)
        says_it = says in said if says else "these differ by more than rounding" in said
        told(code != 0 and says_it, f"slip: {name}", f"status {code}\n" + said[-1500:])


words()
if "--slips" in sys.argv: slips()
else:
    combinations()
    textbook()
    with_experts()
    checkpoints()
shutil.rmtree(work, ignore_errors=True)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
