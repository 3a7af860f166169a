#!/usr/bin/env python3
"""Slips put into the headers on purpose, one at a time: do the tests notice?

tests/mutants/*.mut holds them as data:

    == plan/hash_dtype
    why: plans that differ in dtype alone share a hash: ranks that disagree go on
    test: plan/hash engine/
    - h = mesh__hash_more(h, (uint64_t)p->dtype);
    + (void)0;

`test:` names parts of tests' names that should see it (of test_nccl: `nccl:`; of test_mpi, on 4 ranks: `mpi:`). The text after "- " must stand once in the headers, white space
aside, in whatever file. `equivalent: REASON`: nothing a program could see changes; it is not run. `unnoticed: REASON`: known to pass all
tests; it counts against the score.

Each is applied alone to a copy, compiled, the named tests run, then all of `make test`. A test that fails must fail again, and pass without the slip.
"""
import argparse, glob, hashlib, os, queue, random, re, shutil, signal, subprocess, sys, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NEEDED = 0.95
LONG = re.compile("conformance|_late|redistribute/|redistribute_|golden|pairs|tables/values|large/")  # tried after the others


class Mutant:
    def __init__(self, name, where):
        self.name, self.where = name, where
        self.why, self.tests, self.nccl, self.mpi = "", [], [], []
        self.equivalent = self.unnoticed = None
        self.old, self.new = [], []


def read(path):
    found = []
    for number, line in enumerate(open(path), 1):
        line = line.rstrip("\n")
        if line.startswith("== "):
            found.append(Mutant(line[3:].strip(), f"{os.path.relpath(path, ROOT)}:{number}"))
        elif not line.strip() or line.startswith("#"):
            continue
        elif not found:
            sys.exit(f"{path}:{number}: text before the first \"== name\"")
        elif line.startswith(("- ", "+ ")) or line in ("-", "+"):
            (found[-1].old if line[0] == "-" else found[-1].new).append(line[2:])
        else:
            key, _, value = line.partition(":")
            m, value = found[-1], value.strip()
            if key == "why": m.why = value
            elif key == "test": m.tests = value.split()
            elif key == "nccl": m.nccl = value.split()
            elif key == "mpi": m.mpi = value.split()
            elif key == "equivalent": m.equivalent = value
            elif key == "unnoticed": m.unnoticed = value
            else: sys.exit(f"{path}:{number}: expected why, test, nccl, mpi, equivalent, unnoticed, \"- \" or \"+ \", got \"{line}\"")
    return found


def headers():
    names = glob.glob("*.h", root_dir=ROOT) + glob.glob("mesh/*.h", root_dir=ROOT) + glob.glob("transports/**/*.h", root_dir=ROOT, recursive=True)
    return {n: open(os.path.join(ROOT, n)).read() for n in sorted(names) if not n.endswith("_ptx.h")}


def locate(m, texts):
    """(file, start, end) of the old text, or a sentence about what is wrong."""
    words = "\n".join(m.old).split()
    if not words: return "no text to replace"
    if not m.why: return "it does not say why it matters"
    pattern = re.compile(r"\s+".join(re.escape(w) for w in words))
    hits = [(n, h.start(), h.end()) for n, t in texts.items() for h in pattern.finditer(t)]
    if len(hits) != 1: return f"its text stands {len(hits)} times in the headers"
    if "\n".join(m.new).split() == words: return "it changes nothing"
    return hits[0]


running, running_lock = set(), threading.Lock()


def run(command, cwd, seconds, env=None):
    """(status or None when time ran out, output); everything it started ends with it."""
    with tempfile.TemporaryFile() as out:
        p = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, env=env)
        with running_lock: running.add(p)
        try:
            status = p.wait(seconds)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGTERM)  # the harness ends its tests' groups
            try: p.wait(5)
            except subprocess.TimeoutExpired: pass
            status = None
        with running_lock: running.discard(p)
        try: os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError: pass
        p.wait()
        out.seek(0)
        return status, out.read().decode(errors="replace")


MPI = next((n for n in ("mpich", "openmpi") if shutil.which("mpicc." + n)), None)
MPIEXEC = {"mpich": ["mpiexec.mpich", "-n", "4"], "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"]}


class Slot:
    """A copy of the tree in which one slip at a time is tried."""

    def __init__(self, base, number, cc):
        self.dir, self.cc = os.path.join(base, f"slot{number}"), cc
        shutil.copytree(ROOT, self.dir, ignore=lambda d, names: [n for n in names if d == ROOT and (n.startswith("build") or n == ".git")])

    def compile(self, binary):
        link = ["-lpthread"]
        if binary == "test_nccl":
            fake = os.path.join(self.dir, "build/fake")
            if not os.path.exists(fake):
                os.makedirs(fake)
                status, text = run(["sh", "tests/fake_nccl/build.sh", "build/fake", "-O1"], self.dir, 300, dict(os.environ, CC=self.cc[0]))
                if status: return status, text
            link = ["-Itests/fake_nccl/include", "-Lbuild/fake", "-l:libcudart.so.13", "-Wl,-rpath,$ORIGIN/fake", "-ldl", "-lpthread"]
        os.makedirs(os.path.join(self.dir, "build"), exist_ok=True)
        cc = [f"mpicc.{MPI}"] if binary == "test_mpi" else self.cc
        return run(cc + ["-std=c99", "-w", f"tests/{binary}.c", "-o", f"build/{binary}"] + link, self.dir, 300)

    def names(self, binary, parts):
        return [n for n in run([f"build/{binary}", "--list"] + parts, self.dir, 60)[1].splitlines() if "/" in n and " " not in n]

    def test(self, binary, parts, limit):
        if binary == "test_mpi": return run(MPIEXEC[MPI] + ["build/test_mpi", "--limit", "40"] + parts, self.dir, limit)
        return run([f"build/{binary}", "--stop", "--limit", "60"] + parts, self.dir, limit)


def verdict(m, slot, clean, place, texts, every):
    """(noticed?, by what)."""
    name, start, end = place
    path = os.path.join(slot.dir, name)
    with open(path, "w") as f: f.write(texts[name][:start] + "\n".join(m.new) + texts[name][end:])
    try:
        tries = [("test_nccl", m.nccl)] if m.nccl else [("test_mpi", m.mpi)] if m.mpi else [("test_mesh", m.tests)]
        if m.mpi and not MPI: return None, "there is no MPI here"
        if every and not m.mpi: tries += [("test_mesh", []), ("test_nccl", [])]
        compiled = set()
        for binary, parts in tries:
            if binary not in compiled:
                status, text = slot.compile(binary)
                if status: return None, f"it does not compile: {text.strip().splitlines()[0] if text.strip() else status}"
                compiled.add(binary)
            names = [n for n in slot.names(binary, parts) if clean.known.get(n, True)]
            if not names: return None, f"no test of {binary} has a name with {' or '.join(parts)}"
            groups = [[n for n in names if p in n and not LONG.search(n)] for p in parts or [""]] + [[n for n in names if LONG.search(n)]]
            tried = set()
            for part in groups:  # in the order in which the entry names them
                part = [n for n in part if n not in tried]
                tried.update(part)
                while part:
                    status, text = slot.test(binary, part, 900)
                    if status is None: return True, f"{binary} does not end"
                    failed = re.findall(r"^FAIL ([^\s:]+)", text, re.M)
                    if status and not failed: return True, f"{binary} ended with {status}"
                    if not failed: break
                    late = re.search(r"^FAIL \S+ no end after", text, re.M)
                    if (late or slot.test(binary, failed[:1], 300)[0]) and clean.passes(binary, failed[0]): return True, failed[0]
                    part.remove(failed[0])
        if every and not m.nccl and not m.mpi:
            slot_env = dict(os.environ, BUILD="build")
            targets = ["mesh", "hello", "collectives", "redistribute", "reshard_expert", "refit", "gpu_hello", "gpu_redistribute", "train_gpt"]
            status, text = run(["make", "CFLAGS=-O0", "WARN=-w"] + [f"build/{t}" for t in targets], slot.dir, 600)
            if status: return None, f"it does not compile: {text.strip().splitlines()[-1]}"
            status, text = run(["tests/tools.sh"], slot.dir, 600, slot_env)
            failed = re.findall(r"^FAIL (.+?) \(", text, re.M)
            run(["sh", "-c", "rm -f build/mesh " + " ".join(f"build/{t}" for t in targets)], slot.dir, 60)
            if status: return True, f"tools: {failed[0] if failed else status}"
        return False, ""
    finally:
        with open(path, "w") as f: f.write(texts[name])


class Clean:
    """The tree as it is: does a test pass there?"""

    def __init__(self, base, cc):
        self.slot, self.known, self.lock, self.built = Slot(base, "clean", cc), {}, threading.Lock(), set()

    def passes(self, binary, test):
        with self.lock:
            if test not in self.known:
                if binary not in self.built:
                    status, text = self.slot.compile(binary)
                    if status: sys.exit(f"the tree as it is does not compile:\n{text}")
                    self.built.add(binary)
                status, text = self.slot.test(binary, [test], 300)
                self.known[test] = status == 0
                if status: print(f"note: {test} fails without any slip: not counted as noticing", flush=True)
            return self.known[test]


def main():
    a = argparse.ArgumentParser(description="Slips put into the headers one at a time: do the tests notice?")
    a.add_argument("names", nargs="*", help="parts of mutants' names (default: all)")
    a.add_argument("--check", action="store_true", help="only see that each text stands once in the headers")
    a.add_argument("--list", action="store_true", help="print names and reasons")
    a.add_argument("--draw", type=int, metavar="N", help="N of those that are noticed, drawn by --seed")
    a.add_argument("--seed", default="1", help="any text; a commit's hash in CI")
    a.add_argument("--named", action="store_true", help="run only the tests that an entry names, not all after them")
    a.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    a.add_argument("--cc", default=os.environ.get("CC") or ("clang -O0" if shutil.which("clang") else "cc -O0"))
    o = a.parse_args()
    mutants = [m for f in sorted(glob.glob(os.path.join(ROOT, "tests/mutants/*.mut"))) for m in read(f)]
    texts, places, wrong = headers(), {}, 0
    for m in mutants:
        places[m.name] = locate(m, texts) if sum(x.name == m.name for x in mutants) == 1 else "its name stands twice"
        if isinstance(places[m.name], str):
            wrong += 1
            print(f"STALE {m.name} ({m.where}): {places[m.name]}")
    chosen = [m for m in mutants if not o.names or any(n in m.name for n in o.names)]
    if o.list:
        for m in chosen: print(f"{m.name}: {m.why}")
    if o.check or o.list:
        print(f"{len(mutants) - wrong} passed, {wrong} failed")
        return wrong > 0
    if not chosen: sys.exit(f"no mutant's name has {' or '.join(o.names)}; see --list")
    equivalent = [m for m in chosen if m.equivalent]
    chosen = [m for m in chosen if not m.equivalent and not isinstance(places[m.name], str)]
    if o.draw:
        pool = [m for m in chosen if not m.unnoticed and (MPI or not m.mpi)]
        random.Random(hashlib.sha256(o.seed.encode()).hexdigest()).shuffle(pool)
        chosen = pool[: o.draw]
    base = tempfile.mkdtemp(prefix="mesh-mutants-")
    work, lock, noticed, missed, bad = queue.Queue(), threading.Lock(), [], [], []
    for m in chosen: work.put(m)
    cc = o.cc.split()
    clean = Clean(base, cc)

    def worker(number):
        slot = Slot(base, number, cc)
        while True:
            try: m = work.get_nowait()
            except queue.Empty: return
            start = time.monotonic()
            try: seen, by = verdict(m, slot, clean, places[m.name], texts, not o.named)
            except Exception as e: seen, by = None, repr(e)
            seconds = time.monotonic() - start
            with lock:
                (noticed if seen else bad if seen is None else missed).append(m)
                what = f"noticed by {by}" if seen else f"CANNOT BE TRIED: {by}" if seen is None else f"UNNOTICED ({m.where}): {m.unnoticed or m.why}"
                print(f"{m.name}: {what} ({seconds:.1f} s)", flush=True)

    try:
        threads = [threading.Thread(target=worker, args=(k,), daemon=True) for k in range(o.jobs)]
        for t in threads: t.start()
        for t in threads:
            while t.is_alive(): t.join(1)
    finally:
        with running_lock:
            for p in running:
                p.terminate()
        shutil.rmtree(base, ignore_errors=True)
    total = len(noticed) + len(missed)
    share = len(noticed) / total if total else 0
    for m in equivalent if not o.draw else []: print(f"{m.name}: equivalent: {m.equivalent}")
    print(f"{len(noticed)} of {total} noticed ({100 * share:.1f} %), {len(equivalent)} equivalent")
    failed = len(bad) + wrong + (0 if share >= NEEDED else len(missed))
    print(f"{total - len(missed) if failed else total} passed, {failed} failed")
    return failed > 0


sys.exit(main())
