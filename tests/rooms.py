#!/usr/bin/env python3
"""The house: which room may know which. Each room includes what the table here says and no more, compiles with just that in front of it, is no longer
than a sitting and has no function longer than a screen; docs/architecture.md says where every function is.

    tests/rooms.py            check, one line each; the last line is "N passed, N failed"
    tests/rooms.py --write    write the table of docs/architecture.md
"""
import glob, os, re, subprocess, sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

ARROWS = {  # room: what it includes of the library, in order
    "mesh/base.h": [],
    "mesh.h": ["mesh/base.h"],
    "mesh/transform.h": ["mesh.h"],
    "mesh/degrees.h": ["mesh.h"],
    "mesh/views.h": ["mesh/degrees.h"],
    "mesh/show.h": ["mesh.h"],
    "mesh/spec.h": ["mesh.h"],
    "mesh/layout.h": ["mesh/spec.h"],
    "mesh/local.h": ["mesh/layout.h"],
    "mesh/retired.h": ["mesh/layout.h"],
    "mesh/topology.h": ["mesh.h"],
    "mesh/route.h": ["mesh/layout.h", "mesh/topology.h"],
    "mesh/cost.h": ["mesh/route.h"],
    "mesh/split.h": ["mesh/route.h"],
    "mesh/plan.h": ["mesh/cost.h", "mesh/split.h"],
    "mesh/explain.h": ["mesh/plan.h"],
    "mesh/transport.h": ["mesh.h"],
    "mesh/vector.h": ["mesh/transport.h"],
    "mesh/kernels.h": ["mesh/vector.h"],
    "mesh/tuning.h": ["mesh/transport.h"],
    "mesh/schedule.h": ["mesh/kernels.h", "mesh/tuning.h"],
    "mesh/algorithms.h": ["mesh/schedule.h"],
    "mesh/levels.h": ["mesh/algorithms.h"],
    "mesh/build.h": ["mesh/levels.h"],
    "mesh/hosts.h": ["mesh/transport.h"],
    "mesh/engine.h": ["mesh/schedule.h", "mesh/topology.h", "mesh/hosts.h"],
    "mesh/failure.h": ["mesh/engine.h"],
    "mesh/waits.h": ["mesh/failure.h"],
    "mesh/control.h": ["mesh/waits.h"],
    "mesh/comm.h": ["mesh/control.h"],
    "mesh/memory.h": ["mesh/comm.h"],
    "mesh/request.h": ["mesh/comm.h"],
    "mesh_collectives.h": ["mesh/build.h", "mesh/memory.h", "mesh/request.h"],
    "mesh/p2p.h": ["mesh_collectives.h"],
    "mesh/host_bytes.h": ["mesh_collectives.h"],
    "mesh/messages.h": ["mesh/p2p.h", "mesh/host_bytes.h"],
    "mesh/parts.h": ["mesh/host_bytes.h", "mesh/layout.h"],
    "mesh/stages.h": ["mesh_collectives.h", "mesh/plan.h"],
    "mesh/redistribute.h": ["mesh/stages.h"],
    "mesh/functions.h": ["mesh/transport.h"],
    "mesh/random.h": ["mesh/layout.h", "mesh/kernels.h", "mesh/functions.h"],
    "mesh/alike.h": ["mesh/host_bytes.h"],
    "mesh/norm.h": ["mesh/alike.h", "mesh/layout.h", "mesh/functions.h"],
    "mesh/replicas.h": ["mesh/parts.h"],
    "mesh/rows.h": ["mesh/host_bytes.h", "mesh/functions.h"],
    "mesh/experts.h": ["mesh/alike.h", "mesh/rows.h"],
    "mesh/buckets.h": ["mesh/redistribute.h"],
    "mesh/attention.h": ["mesh/alike.h", "mesh/rows.h", "mesh/p2p.h", "mesh/layout.h"],
    "mesh/vocabulary.h": ["mesh/alike.h", "mesh/rows.h", "mesh/layout.h"],
    "mesh/pipeline.h": ["mesh/base.h"],
    "mesh/pipeline_run.h": ["mesh/p2p.h", "mesh/pipeline.h"],
    "mesh_parallel.h": ["mesh_collectives.h"],
    "mesh/safetensors.h": ["mesh/layout.h", "mesh/transport.h"],
    "mesh/files.h": ["mesh/safetensors.h"],
    "mesh_checkpoint.h": ["mesh_collectives.h", "mesh/parts.h", "mesh/redistribute.h", "mesh/files.h"],
    "mesh/save.h": ["mesh_checkpoint.h", "mesh/alike.h"],
    "mesh/load.h": ["mesh_checkpoint.h"],
    "transports/mesh_sim.h": ["mesh_collectives.h"],
    "transports/mesh_env.h": ["mesh.h"],
    "transports/mesh_socket.h": ["mesh_collectives.h"],
    "transports/socket/hmac.h": ["mesh/transport.h"],
    "transports/socket/state.h": ["transports/mesh_socket.h"],
    "transports/socket/shared.h": ["transports/socket/state.h"],
    "transports/socket/lend.h": ["transports/socket/shared.h"],
    "transports/socket/frames.h": ["transports/socket/lend.h"],
    "transports/socket/connect.h": ["transports/socket/frames.h"],
    "transports/socket/handshake.h": ["transports/socket/connect.h", "transports/socket/hmac.h"],
    "transports/socket/patience.h": ["transports/socket/shared.h"],
    "transports/socket/loop.h": ["transports/socket/handshake.h", "transports/socket/patience.h"],
    "transports/socket/cells.h": ["transports/socket/loop.h"],
    "transports/socket/large.h": ["transports/socket/cells.h"],
    "transports/socket/direct.h": ["transports/socket/large.h"],
    "transports/socket/ops.h": ["transports/socket/direct.h"],
    "transports/socket/helper.h": ["transports/socket/ops.h"],
    "transports/socket/open.h": ["transports/socket/helper.h", "transports/mesh_env.h"],
    "transports/mesh_mpi.h": ["mesh_collectives.h"],
    "transports/mpi/state.h": ["transports/mesh_mpi.h"],
    "transports/mpi/messages.h": ["transports/mpi/state.h"],
    "transports/mpi/calls.h": ["transports/mpi/messages.h"],
    "transports/mpi/groups.h": ["transports/mpi/state.h"],
    "transports/mpi/open.h": ["transports/mpi/calls.h", "transports/mpi/groups.h", "transports/mesh_env.h"],
    "transports/mesh_nccl_ptx.h": [],
    "transports/mesh_nccl.h": ["mesh_collectives.h", "transports/mesh_nccl_ptx.h"],
    "transports/nccl/state.h": ["transports/mesh_nccl.h", "transports/mesh_env.h"],
    "transports/nccl/streams.h": ["transports/nccl/state.h"],
    "transports/nccl/bytes.h": ["transports/nccl/streams.h"],
    "transports/nccl/watch.h": ["transports/nccl/streams.h"],
    "transports/nccl/agree.h": ["transports/nccl/watch.h"],
    "transports/nccl/comms.h": ["transports/nccl/agree.h"],
    "transports/nccl/calls.h": ["transports/nccl/comms.h", "transports/nccl/bytes.h"],
    "transports/nccl/memory.h": ["transports/nccl/calls.h"],
    "transports/nccl/open.h": ["transports/nccl/memory.h"],
}
BEHIND = {  # what a front door brings at its end, for who comes in by it
    "mesh.h": ["mesh/transform.h", "mesh/degrees.h", "mesh/views.h", "mesh/show.h", "mesh/layout.h", "mesh/local.h", "mesh/explain.h", "mesh/retired.h"],
    "mesh_collectives.h": ["mesh/p2p.h", "mesh/host_bytes.h", "mesh/messages.h", "mesh/redistribute.h"],
    "mesh_parallel.h": ["mesh/random.h", "mesh/norm.h", "mesh/replicas.h", "mesh/buckets.h", "mesh/vocabulary.h", "mesh/attention.h", "mesh/pipeline_run.h", "mesh/experts.h"],
    "mesh_checkpoint.h": ["mesh/save.h", "mesh/load.h"],
    "transports/mesh_socket.h": ["transports/socket/open.h"],
    "transports/mesh_mpi.h": ["transports/mpi/open.h"],
    "transports/mesh_nccl.h": ["transports/nccl/open.h"],
}
ROOM_LINES, FUNCTION_LINES = 1200, 60
TABLE = ("<!-- rooms: made by tests/rooms.py --write -->", "<!-- end of rooms -->")


def headers():
    found = []
    for folder in (".", "mesh", "transports"):
        for at, folders, files in os.walk(folder):
            if folder == ".": folders.clear()
            found += [os.path.relpath(os.path.join(at, f)) for f in files if f.endswith(".h")]
    return sorted(found)


def includes(room, text):
    """(in front, at the end behind MESH__ONE_ROOM)"""
    front, end, behind = [], [], False
    for line in text.split("\n"):
        if "MESH__ONE_ROOM" in line: behind = True
        if behind and line.startswith("#endif"): behind = False
        m = re.match(r'#include "(.*)"', line)
        if m: (end if behind else front).append(os.path.normpath(os.path.join(os.path.dirname(room), m.group(1))))
    return front, end


FUNCTION = re.compile(r"^(?:MESH_API|MESH__PRIVATE|MESH__RARE|MESH__INLINE|MESH__FOLDED|static)\b[^;={]*?\b(\w+)\([^;]*?\) \{(?:[^\n]*\}$|\n.*?\n\}$)", re.M | re.S)
PUBLIC = re.compile(r"^MESH_API\b[^;{]*?\b(\w+)\(", re.M)


def functions(text):
    """[(name, lines, line)] of what is defined here."""
    return [(m.group(1), m.group(0).count("\n") + 1, text.count("\n", 0, m.start()) + 1) for m in FUNCTION.finditer(text)]


def table(texts):
    rows = ["| room | public | private |", "|---|---|---|"]
    for room in ARROWS:
        names = [n for n, _, _ in functions(texts[room])]
        public = sorted({n for n in names if "__" not in n})
        private = sorted({n for n in names if "__" in n})
        rows.append(f"| `{room}` | {' '.join(public)} | {' '.join(private)} |")
    return "\n".join([TABLE[0], *rows, TABLE[1]])


def architecture(texts):
    page = open("docs/architecture.md").read()
    return page, re.sub(re.escape(TABLE[0]) + ".*?" + re.escape(TABLE[1]), lambda m: table(texts), page, flags=re.S)


def behind(door, known):
    """The rooms that a door brings, but for those of doors named before it."""
    found, left = set(), [door]
    while left:
        room = left.pop()
        if room in found or room in known or room.endswith("_ptx.h"): continue
        found.add(room)
        left += ARROWS[room] + BEHIND.get(room, [])
    return found


def readme(texts):
    """README, and README with the lines that its table of doors has: each with what is behind it."""
    page = made = open("README.md").read()
    known = set()
    alone = ("transports/mesh_env.h", "transports/mesh_sim.h")
    for door in sorted(alone + tuple(BEHIND), key=list(ARROWS).index):
        rooms = behind(door, known)
        known |= rooms
        lines = sum(len(texts[room].splitlines()) for room in rooms)
        made = re.sub(r"(?m)^(\| `" + re.escape(door) + r"` \| .* \| )[\d,]+ \|$", lambda m: f"{m.group(1)}{lines:,} |", made)
    return page, made


def compiles(room):
    """What the compiler says of a room by itself; of a door also of its declarations first and the implementation later. "" if it is content."""
    cuda = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
    where = ["-I" + (cuda if os.path.exists(os.path.join(cuda, "nccl.h")) else "tests/fake_nccl/include")] if "nccl" in room else []
    if "mesh_mpi" in room or "/mpi/" in room:
        where = ["-isystem" + os.path.dirname(h) for h in glob.glob("/usr/lib/*/openmpi/include/mpi.h") + glob.glob("/usr/include/*/mpich/mpi.h")][:1]
        if not where: return ""  # there is no MPI here
    sources = [f'#define MESH_IMPLEMENTATION\n#define MESH__ONE_ROOM\n#include "{room}"\n#include "{room}"\n']
    if room in BEHIND: sources.append(f'#define _POSIX_C_SOURCE 200809L\n#include "{room}"\n#define MESH_IMPLEMENTATION\n#include "{room}"\n')
    said = []
    for source in sources:
        made = subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-Wall", "-Wextra", "-Wno-unused-function", "-I.", *where, "-x", "c",
                               "-fsyntax-only", "-"], input=source, capture_output=True, text=True)
        # the hooks of engine.h are defined in the rooms behind it
        said += [l for l in made.stderr.split("\n") if re.search(r"(error|warning):", l) and "used but never defined" not in l]
    return "\n".join(said)


def openings(first):
    """How many of our files the preprocessor opens for who includes all front doors but NCCL's and MPI's."""
    source = first + "".join(f'#include "{door}"\n' for door in ("mesh.h", "mesh_collectives.h", "transports/mesh_socket.h", "transports/mesh_sim.h"))
    made = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu99", "-I.", "-H", "-E", "-x", "c", "-"], input=source, capture_output=True, text=True)
    return len(re.findall(r"^\.+ (?!/)", made.stderr, re.M))


def main():
    texts = {room: open(room).read() for room in headers()}
    passed = failed = 0

    def check(name, why):
        nonlocal passed, failed
        passed, failed = passed + (not why), failed + bool(why)
        print(f"{'FAIL' if why else 'ok  '} {name}" + (f": {why}" if why else ""))

    if "--write" in sys.argv:
        made = architecture(texts)[1]
        open("docs/architecture.md", "w").write(made)
        made = readme(texts)[1]
        open("README.md", "w").write(made)
        return
    check("rooms: the table holds all", " ".join(sorted(set(texts) ^ set(ARROWS))))
    at = list(ARROWS)
    for room in at:
        check(f"arrows of {room}", next((f"it includes {b}, which stands below it in the table" for b in ARROWS[room] if at.index(b) >= at.index(room)), ""))
        front, end = includes(room, texts.get(room, ""))
        check(f"includes of {room}", "" if front == ARROWS[room] and end == BEHIND.get(room, [])
              else f"{front} and at its end {end}; the table says {ARROWS[room]} and {BEHIND.get(room, [])}")
        check(f"{room} by itself", compiles(room)[:600])
        lines = len(texts[room].splitlines())
        if not room.endswith("_ptx.h"): check(f"{room}: {lines} lines", f"more than {ROOM_LINES}" if lines > ROOM_LINES else "")
        long = [f"{n} (line {l}) has {k} lines" for n, k, l in functions(texts[room]) if k > FUNCTION_LINES]
        check(f"functions of {room}", "; ".join(long))
    ways = sum(map(len, ARROWS.values())) + sum(map(len, BEHIND.values()))
    for name, first in ("declared", ""), ("implemented", "#define MESH_IMPLEMENTATION\n"):
        n = openings(first)
        check(f"rooms: {n} files are opened where all is {name}", "" if 20 < n <= 2 * ways else f"there are {ways} ways: a room follows its includes only once")
    page, made = architecture(texts)
    check("docs/architecture.md says where every function is", "" if page == made else "tests/rooms.py --write makes it anew")
    page, made = readme(texts)
    check("README.md says how many lines each door brings", "" if page == made else "tests/rooms.py --write counts them")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
