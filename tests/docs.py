#!/usr/bin/env python3
"""What the pages docs/from-*.md say in code is compiled, and their programs are run.

docs.py [--out DIR] [--mesh build/mesh] [--cc cc]

Of a table's rows the second column is code: what stands there in backquotes is statements, separated by ";" or commas of C, compiled together
in one function in which the names that the page uses are declared (below). A block of C with a main is a program: run as 4 ranks, and alone.
"""
import argparse, os, re, subprocess, sys

PRELUDE = """
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_parallel.h"
#include "transports/mesh_socket.h"
%(include)s
#include <stdio.h>
int main(void);
static int rows(mesh_transport *t, mesh_comm comm, mesh m) {
    mesh_socket net;
%(variables)s    mesh g, tp;
    mesh_comm part;
    mesh_error err;
    mesh_request r = MESH_ZERO, list[4];
    mesh_layout layout = MESH_ZERO;
    const mesh_layout *operands[2] = {&layout, &layout};
    float memory[4];
    mesh_views views = MESH_ZERO;
    const mesh *titan;
    int place;
    mesh_tensor rows = MESH_ZERO, columns = MESH_ZERO;
    mesh_tensor src = MESH_ZERO, dst = MESH_ZERO, weight = MESH_ZERO, view;
    mesh_object object = MESH_ZERO;
    mesh_halo halo = MESH_ZERO;
    mesh_xfer xfers[2];
    mesh_user_op user = MESH_ZERO;
    mesh_op op;
    mesh_spec spec;
    mesh_plan plan;
    mesh_degrees degrees = MESH_ZERO;
    mesh_box box;
    mesh_buffer buffers[2];
    mesh_table table;
    mesh_desc desc = MESH_ZERO;
    const char *axes = NULL;
    static double in[64], out[64];
    static size_t counts[8], offsets[8];
    int64_t shape[2] = {8, 8}, strides[2], ns;
    size_t n = 1, room = 1, got, nbytes = 1;
    void *p = NULL, *handle = NULL, *stream = NULL;
    char text[256];
    int rank = 0, size = 1, to = 0, from = 0, root = 0, periodic = 1, color = 0, key = 0, i = 0, n_ranks, dims[2] = {0, 0}, coords[2], ranks[64],
        order[2] = {1, 0}, inverse[64];
    if (!t) return 0;
%(rows)s
    (void)net, (void)g, (void)tp, (void)part, (void)r, (void)list, (void)layout, (void)operands, (void)memory, (void)views, (void)titan, (void)place, (void)rows, (void)columns, (void)src, (void)dst, (void)weight;
    (void)view, (void)object, (void)halo, (void)xfers, (void)user, (void)op, (void)spec, (void)plan, (void)degrees, (void)box, (void)buffers;
    (void)axes, (void)in, (void)out, (void)counts, (void)offsets, (void)shape, (void)strides, (void)ns, (void)got, (void)p, (void)handle;
    (void)text, (void)rank, (void)size, (void)to, (void)from, (void)root, (void)periodic, (void)color, (void)key, (void)i, (void)n_ranks;
    (void)dims, (void)coords, (void)ranks, (void)order, (void)inverse, (void)err, (void)n, (void)room, (void)nbytes, (void)stream, (void)table, (void)desc;
    return 0;
}
int main(void) {
    mesh_comm c = MESH_ZERO;
    mesh m = MESH_ZERO;
    return rows(NULL, c, m);
}
"""
passed = failed = 0


def check(what, ok, why=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print(f"{'ok  ' if ok else 'FAIL'} {what}" + ("" if ok else ":\n" + why))


def code_of(cell):
    return [c.strip() for c in re.findall(r"`([^`]+)`", cell)]


def rows_of(text):
    for number, line in enumerate(text.splitlines(), 1):
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)]
        if len(cells) < 4 or not cells[2].startswith("`"): continue
        yield number, code_of(cells[2])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", default="build/docs")
    a.add_argument("--mesh", default="build/mesh")
    a.add_argument("--cc", default="cc")
    a = a.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    os.makedirs(a.out, exist_ok=True)
    pages = sorted(p for p in os.listdir("docs") if re.match(r"from-.*\.md$", p))
    for page in pages:
        text = open(f"docs/{page}").read()
        name = page[:-3]
        found = list(rows_of(text))
        body = ""
        for number, codes in found:
            body += f'#line {number} "docs/{page}"\n    {{ ' + " ".join(f"{c};" for c in codes) + " }\n"
        source = f"{a.out}/{name}.c"
        nccl = "nccl" in page
        open(source, "w").write(PRELUDE % {"rows": body, "include": '#include "transports/mesh_nccl.h"' if nccl else "",
                                           "variables": "    mesh_nccl gpu;\n    mesh_nccl_desc wants = MESH_ZERO;\n    ncclComm_t theirs = NULL;\n" if nccl else ""})
        include = ["-Itests/fake_nccl/include"] if nccl else []
        r = subprocess.run([a.cc, "-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-value", "-I.", *include, "-fsyntax-only", source],
                           capture_output=True, text=True)
        check(f"{page}: {len(found)} rows", r.returncode == 0 and len(found) > 9, r.stderr[:3000])
        programs = re.findall(r"```c\n(.*?)```", text, re.S)
        for k, program in enumerate(programs):
            source, binary = f"{a.out}/{name}-{k}.c", f"{a.out}/{name}-{k}"
            open(source, "w").write(program)
            link = ["-lpthread", "-ldl"] if nccl else ["-lpthread"]
            r = subprocess.run([a.cc, "-std=c99", "-O0", "-Wall", "-Wextra", "-Werror", "-I.", *include, source, "-o", binary, *link], capture_output=True,
                               text=True)
            check(f"{page}: program {k + 1} compiles", r.returncode == 0, r.stderr[:3000])
            if r.returncode: continue
            for run in ([binary], [a.mesh, "run", "-n", "4", "--", binary]):
                r = subprocess.run(run, capture_output=True, text=True, timeout=60)
                check(f"{page}: {' '.join(run)}", r.returncode == 0, r.stdout[-1500:] + r.stderr[-1500:])
    print(f"{passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__": sys.exit(main())
