#!/usr/bin/env python3
# Runs the PTX of mesh_nccl_ptx.h without a GPU, on the cases of `selftest --vectors`. Part of mesh.h 0.1.0. MIT licence.
#     selftest --vectors [seed] | ptx_run.py ../mesh_nccl_ptx.h
# An interpreter of the instructions that occur there, by the PTX ISA's text; another one ends the run. Loads and stores outside the case's
# memory, or not aligned, fail it. The last lines say which instructions no case reached, and "N passed, N failed".
import math
import re
import struct
import sys

DST, SRC, PARAM = 1 << 44, 1 << 45, 1 << 60
BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


class Fault(Exception):
    pass


# ---- numbers: registers hold bits, as unsigned integers; predicates hold bools ------------------------------------------------


def signed(v, bits):
    v &= (1 << bits) - 1
    return v - (1 << bits) if v >> (bits - 1) else v


def number(v, bits):
    return struct.unpack("<f" if bits == 32 else "<d", (v & (1 << bits) - 1).to_bytes(bits // 8, "little"))[0]


# Rounded once, to nearest and ties to even. A double holds sums, products and quotients of two f32 to more than twice an f32's bits, so
# that rounding it again is rounding the exact result.
def pack(x, bits):
    if math.isnan(x):
        return {16: 0x7FFF, 32: 0x7FFFFFFF, 64: 0x7FF8 << 48}[bits]
    try:
        return int.from_bytes(struct.pack({16: "<e", 32: "<f", 64: "<d"}[bits], x), "little")
    except OverflowError:
        return pack(math.copysign(math.inf, x), bits)


# A whole number, rounded once: a double of more than 2^53 would be rounded before.
def from_whole(v, bits):
    if abs(v) >= 1 << 53:
        raise SystemExit("ptx_run: a whole number of %d" % v)
    return pack(float(v), bits)


def divide(x, y):
    if y:
        return x / y
    return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)


ARITHMETIC = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
}
COMPARE = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
}

class Shuffle:
    def __init__(self, to, value, other, clamp, mask):
        self.to, self.value, self.other, self.clamp, self.mask = to, value, other, clamp, mask


# ---- the text: one closure per instruction, which returns where to go or None -------------------------------------------------------


class Machine:
    def __init__(self, args, dst, src):
        self.regions = [(PARAM, args), (DST, dst), (SRC, src)]
        self.reg = {}

    def span(self, address, n):
        if address % n:
            raise Fault("address %#x is no multiple of %d" % (address, n))
        for base, data in self.regions:
            if base <= address and address + n <= base + len(data):
                return data, address - base
        raise Fault("address %#x is outside" % address)


def operand(text):
    text = text.strip()
    if text == "args":
        return lambda m: PARAM
    if text[0] == "%":
        return lambda m: m.reg[text]
    if text[:2] in ("0f", "0d", "0F", "0D"):
        v = int(text[2:], 16)
        return lambda m: v
    v = int(text.rstrip("U"), 0)
    return lambda m: v


def place(text):
    inside = re.fullmatch(r"\[([^\]+]+)(?:\+(-?\d+))?\]", text)
    base, offset = operand(inside.group(1)), int(inside.group(2) or 0)
    return lambda m: base(m) + offset & (1 << 64) - 1


def width_of(register):
    return {"%rs": 16, "%r": 32, "%f": 32, "%rd": 64, "%fd": 64}[re.match(r"%[a-z]+", register).group()]


def instruction(opcode, ops):
    part = opcode.split(".")
    name, kind = part[0], part[-1]
    bits = int(kind[1:]) if kind[1:].isdigit() else 0
    mask = (1 << bits) - 1
    if name == "ret":
        return lambda m: -1
    if name == "shfl":  # all of a warp come here before any goes on: to, from, lane xor what
        if part[1:] != ["sync", "bfly", "b32"]:
            raise SystemExit("ptx_run: %s %s" % (opcode, ops))
        return Shuffle(ops[0].split("|")[0], *[operand(x) for x in ops[1:]])
    if name in ("ld", "st"):
        n = BYTES[str(bits)]
        memory, value = (ops[0], ops[1]) if name == "st" else (ops[1], ops[0])
        values = [v.strip() for v in value.strip("{}").split(",")]
        if len(values) != (int(part[2][1:]) if len(part) == 4 else 1) or part[1] not in ("param", "global"):
            raise SystemExit("ptx_run: %s %s" % (opcode, ops))
        param, address = part[1] == "param", place(memory)
        signs, total = kind[0] == "s", n * len(values)

        def load(m):
            at = address(m)
            if param != (at >= PARAM):
                raise Fault("%s of address %#x" % (opcode, at))
            data, i = m.span(at, total)
            for k, v in enumerate(values):
                x = int.from_bytes(data[i + k * n : i + k * n + n], "little")
                m.reg[v] = signed(x, bits) & (1 << width_of(v)) - 1 if signs else x

        sources = [] if name == "ld" else [operand(v) for v in values]

        def store(m):
            at = address(m)
            if at >= PARAM:
                raise Fault("a store to the arguments")
            data, i = m.span(at, total)
            for k, v in enumerate(sources):
                data[i + k * n : i + k * n + n] = (v(m) & mask).to_bytes(n, "little")

        return load if name == "ld" else store
    to, a = ops[0], [operand(x) for x in ops[1:]]

    def put(f, keep=mask):  # f's result, cut to the type
        def run(m):
            m.reg[to] = f(m) & keep

        return run

    if kind == "pred":
        if name == "mov":
            return put(lambda m: bool(a[0](m)), True)
        if name == "not":
            return put(lambda m: not a[0](m), True)
        f = ARITHMETIC[name]
        return put(lambda m: f(a[0](m), a[1](m)), True)
    if name == "mov":
        return put(a[0])
    if name == "not":
        return put(lambda m: ~a[0](m))
    if name == "bfi" and kind[0] == "b":  # a[3] bits of a[0] at bit a[2] of a[1]

        def insert(m):
            at, n = a[2](m) & 0xFF, a[3](m) & 0xFF
            field = ((1 << n) - 1) << at & mask
            return a[1](m) & ~field | a[0](m) << at & field

        return put(insert)
    if name == "neg" and kind[0] == "f":
        return put(lambda m: a[0](m) ^ 1 << bits - 1)
    if name == "neg":
        return put(lambda m: -a[0](m))
    if name == "selp":
        return put(lambda m: a[0](m) if a[2](m) else a[1](m))
    if name == "setp":
        if len(part) != 3:
            raise SystemExit("ptx_run: " + opcode)
        if part[1] == "nan":
            return put(lambda m: any(math.isnan(number(x(m), bits)) for x in a[:2]), True)
        how, unordered = (part[1], False) if part[1] in COMPARE else (part[1][:-1], True)
        f = COMPARE[how]
        if kind[0] == "f":

            def compare(m):
                x, y = number(a[0](m), bits), number(a[1](m), bits)
                m.reg[to] = unordered if math.isnan(x) or math.isnan(y) else f(x, y)

            return compare
        if unordered:
            raise SystemExit("ptx_run: " + opcode)
        if kind[0] == "s":
            return put(lambda m: f(signed(a[0](m), bits), signed(a[1](m), bits)), True)
        return put(lambda m: f(a[0](m) & mask, a[1](m) & mask), True)
    if name == "shl":
        return put(lambda m: a[0](m) << min(a[1](m) & 0xFFFFFFFF, bits))
    if name == "shr" and kind[0] in "ub":
        return put(lambda m: (a[0](m) & mask) >> min(a[1](m) & 0xFFFFFFFF, bits))
    if name == "shr":
        return put(lambda m: signed(a[0](m), bits) >> min(a[1](m) & 0xFFFFFFFF, bits - 1))
    if name == "cvt":
        source = part[-1]
        target, from_bits, to_bits = part[-2], int(source[1:]), int(part[-2][1:])
        middle = part[1:-2]
        if target[0] == "f" and source[0] == "f" and (target, source, middle) in (("f32", "f16", []), ("f16", "f32", ["rn"])):
            if target == "f32":
                return put(lambda m: pack(struct.unpack("<e", (a[0](m) & 0xFFFF).to_bytes(2, "little"))[0], 32), 0xFFFFFFFF)
            return put(lambda m: pack(number(a[0](m), 32), 16), 0xFFFF)
        if (target, source, middle) in (("f64", "f32", []), ("f32", "f64", ["rn"])):
            return put(lambda m: pack(number(a[0](m), from_bits), to_bits), (1 << to_bits) - 1)
        if target[0] == "f" and source == "s32" and middle == ["rn"]:
            return put(lambda m: pack(float(signed(a[0](m), 32)), to_bits), (1 << to_bits) - 1)
        if (target, source, middle) == ("s32", "f32", ["rzi"]):
            return put(lambda m: int(number(a[0](m), 32)), 0xFFFFFFFF)  # of what fits
        if target[0] == "f" and source in ("s64", "u64") and middle == ["rn"]:
            return put(lambda m: from_whole(signed(a[0](m), 64) if source[0] == "s" else a[0](m), to_bits), (1 << to_bits) - 1)
        if target[0] in "us" and source[0] in "us" and not middle:
            room = (1 << width_of(to)) - 1

            def convert(m):
                v = signed(a[0](m), from_bits) if source[0] == "s" else a[0](m) & (1 << from_bits) - 1
                m.reg[to] = (signed(v, to_bits) if target[0] == "s" else v & (1 << to_bits) - 1) & room

            return convert
        raise SystemExit("ptx_run: " + opcode)
    if kind[0] == "f" and name in ("add", "sub", "mul", "div") and part[1:-1] == ["rn"]:
        f = divide if name == "div" else ARITHMETIC[name]
        return put(lambda m: pack(f(number(a[0](m), bits), number(a[1](m), bits)), bits))
    if name == "rcp" and part[1] == "rn":
        return put(lambda m: pack(divide(1.0, number(a[0](m), bits)), bits))
    if name in ("div", "rem") and kind[0] == "u" and len(part) == 2:
        if name == "div":
            return put(lambda m: (a[0](m) & mask) // (a[1](m) & mask))
        return put(lambda m: (a[0](m) & mask) % (a[1](m) & mask))
    if name == "max" and kind == "f32" and len(part) == 2:  # of a number and no number the number; of zeros the positive one

        def greater(m):
            x, y = a[0](m), a[1](m)
            u, v = number(x, bits), number(y, bits)
            if math.isnan(u) or math.isnan(v):
                return pack(v if math.isnan(u) else u, bits)
            return x if (u, math.copysign(1, u)) > (v, math.copysign(1, v)) else y

        return put(greater)
    if name == "min" and kind[0] == "u" and len(part) == 2:
        return put(lambda m: min(a[0](m) & mask, a[1](m) & mask))
    if name == "mul" and part[1] == "wide":
        if kind[0] == "s":
            return put(lambda m: signed(a[0](m), bits) * signed(a[1](m), bits), (1 << 2 * bits) - 1)
        return put(lambda m: (a[0](m) & mask) * (a[1](m) & mask), (1 << 2 * bits) - 1)
    if name in ARITHMETIC and kind[0] != "f" and part[1:-1] == (["lo"] if name == "mul" else []):
        f = ARITHMETIC[name]
        return put(lambda m: f(a[0](m), a[1](m)))
    raise SystemExit("ptx_run: no " + opcode)


def parse(text):
    kernels, sizes, code, labels, branches, name = {}, {}, None, None, None, None
    for line in text.splitlines():
        entry = re.match(r"\.visible \.entry (\w+)\(", line)
        if entry:
            name, code, labels, branches = entry.group(1), [], {}, []
        elif line.startswith(".param"):
            sizes[name] = int(re.search(r"args\[(\d+)\]", line).group(1))
        elif line == "}":
            for i, label in branches:
                code[i][1].append(labels[label])
            kernels[name] = code
        elif line.endswith(":"):
            labels[line[:-1]] = len(code)
        elif line[0] not in ".(){}":
            found = re.fullmatch(r"(?:@(!?)(%p\d+) )?([a-z0-9.]+)(?: (.*))?;", line)
            negate, predicate, opcode, rest = found.groups()
            goal = []  # of a branch
            if opcode in ("bra", "bra.uni"):
                branches.append((len(code), rest))
                run = lambda m, goal=goal: goal[0]
            else:
                run = instruction(opcode, [x.strip() for x in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest or "")])
            code.append((run, goal, predicate, negate == "!", line))
    return kernels, sizes


# A thread to its end, or to its next shuffle, which it yields.
def thread(code, m, reached):
    pc = 0
    while pc >= 0:
        run, _, predicate, negate, _ = code[pc]
        reached.add(pc)
        if predicate is None or m.reg[predicate] != negate:
            if isinstance(run, Shuffle):
                yield run
                goal = None
            else:
                goal = run(m)
            pc = pc + 1 if goal is None else goal
        else:
            pc += 1


# Threads side by side; where one shuffles all of the 32 do.
def warp(code, machines, reached):
    threads = [thread(code, m, reached) for m in machines]
    while True:
        at = [next(t, None) for t in threads]
        if at == [None] * len(at):
            return
        if len(at) != 32 or any(x is not at[0] or x.clamp(m) != 31 or x.mask(m) & 0xFFFFFFFF != 0xFFFFFFFF for x, m in zip(at, machines)):
            raise Fault("a shuffle that not all threads of the warp come to")
        values = [at[0].value(m) & 0xFFFFFFFF for m in machines]
        for i, m in enumerate(machines):
            m.reg[at[0].to] = values[i ^ at[0].other(m)]


# ---- cases -----------------------------------------------------------------------------------------------------------------------------


# Where any NaN will do, every NaN of the array becomes the same one.
def one_nan(data, n, bf16):
    out = bytearray(data)
    for i in range(0, len(out) - n + 1, n):
        v = int.from_bytes(out[i : i + n], "little")
        inf = {2: 0x7F80 if bf16 else 0x7C00, 4: 0x7F800000, 8: 0x7FF << 52}[n]
        if v & ~(1 << (8 * n - 1)) > inf:
            out[i : i + n] = b"\xff" * n
    return out


def main():
    source = open(sys.argv[1]).read()
    text = "".join(line.strip(',};')[1:-1] for line in source.splitlines() if line.startswith('"'))
    text = text.replace('\\"', '"').replace("\\n", "\n")
    if len(text) != int(re.search(r"MESH__PTX_BYTES (\d+)", source).group(1)):
        raise SystemExit("ptx_run: the text is not MESH__PTX_BYTES long")
    kernels, sizes = parse(text)
    reached = {name: set() for name in kernels}
    passed = failed = 0
    case = {}
    for line in sys.stdin:
        key, _, rest = line.strip().partition(" ")
        case[key] = rest
        if key != "want":
            continue
        name, grid, block, cta, tid, every, nan = case["run"].split()
        grid, block, nan = int(grid), int(block), int(nan)
        args, dst, src, want = (bytearray.fromhex(case[k]) for k in ("args", "dst", "src", "want"))
        before = bytes(src)
        where = [(c, t) for c in range(grid) for t in range(block)] if int(every) else [(int(cta), int(tid))]
        why = ""
        try:
            if len(args) > sizes[name]:  # a batch's unused words are not there, and must not be read
                raise Fault("%d bytes of arguments for %d" % (len(args), sizes[name]))
            for i in range(0, len(where), 32):
                machines = []
                for c, t in where[i : i + 32]:
                    machines.append(Machine(args, dst, src))
                    machines[-1].reg = {"%ctaid.x": c, "%tid.x": t, "%ntid.x": block, "%nctaid.x": grid}
                warp(kernels[name], machines, reached[name])
        except Fault as fault:
            why = str(fault)
        if nan:
            dst, want = one_nan(dst, nan, "bf16" in name), one_nan(want, nan, "bf16" in name)
        if dst != want:
            at = next(i for i in range(len(want)) if dst[i] != want[i])
            why = why or "byte %d is %02x, not %02x" % (at, dst[at], want[at])
        if src != before:
            why = why or "src was written"
        if why:
            failed += 1
            print("FAIL %s: %s" % (case["run"], why))
        else:
            passed += 1
    for name, code in kernels.items():
        for pc in sorted(set(range(len(code))) - reached[name]):
            print("not reached: %s: %s" % (name, code[pc][4]))
    lines = sum(len(code) for code in kernels.values())
    print("%d kernels, %d of %d instructions reached" % (len(kernels), sum(map(len, reached.values())), lines))
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(failed != 0 or passed == 0)


main()
