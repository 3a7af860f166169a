#!/usr/bin/env python3
"""What the pages docs/from-*.md and docs/zoo.md say in code is compiled, their programs are run, and their tables of layouts are asked of the library.

docs.py [--out DIR] [--mesh build/mesh] [--cc cc]

Of a table with a column "here" that column is code: what stands there in backquotes is statements, separated by ";" or commas of C, compiled together
in one function in which the names that the page uses are declared (below). A block of C with a main is a program: run as 4 ranks, and alone.
Of a table with "at rest", "used", "forward" and "backward" each row is planned, both ways, and the steps must be the words that stand there.
Of one with "computation", "operands" and "result", mesh_layout_local must give the result, or refuse.
"""
import argparse, os, re, subprocess, sys

PRELUDE = """
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include "mesh_parallel.h"
#include "mesh_checkpoint.h"
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
    mesh_lookup lookup = MESH_ZERO;
    mesh_loss loss = MESH_ZERO;
    mesh_buckets buckets = MESH_ZERO;
    mesh_attention attention = MESH_ZERO;
    mesh_schedule schedule = MESH_ZERO;
    mesh_stage stage = MESH_ZERO;
    mesh_moe moe = MESH_ZERO;
    mesh_moe_rows expert_rows;
    mesh_tensor sums[2], at_rest[2];
    mesh_named named[2];
    int32_t ids[8] = {0};
    float weights[8];
    double norm;
    mesh_table table;
    mesh_desc desc = MESH_ZERO;
    const char *axes = NULL;
    static double in[64], out[64];
    static size_t counts[8], offsets[8];
    int64_t shape[3] = {8, 8, 8}, strides[3], ns;
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
    (void)lookup, (void)loss, (void)buckets, (void)attention, (void)schedule, (void)stage, (void)moe, (void)expert_rows, (void)sums, (void)at_rest, (void)named, (void)ids, (void)weights, (void)norm;
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


LAYOUTS = """
#define MESH_IMPLEMENTATION
#include "mesh.h"
#include <stdio.h>
#include <string.h>
static int wrong;
static mesh_error err;
static const int64_t shape[MESH_MAX_DIMS] = {30, 30, 30, 30, 30, 30, 30, 30};

static void differ(int line, const char *what, const char *is, const char *said) {
    printf("line %%d, %%s: it is %%s; the page says %%s\\n", line, what, is, said);
    wrong++;
}

/* The steps of the plan with the fewest messages, where bytes cost nothing: so a sum is an all_reduce, not the reduce_scatter and all_gather that large
   ones are made of. A copy within each rank is no step. */
static void steps(int line, const char *what, const mesh_layout *from, const mesh_layout *to, const char *said) {
    char is[256] = "";
    mesh_plan_desc d = MESH_ZERO;
    mesh_topology messages;
    mesh_plan p;
    int k;
    d.src = from, d.dst = to, d.dtype = MESH_F32, d.topology = &messages;
    if (mesh_topology_parse(&messages, "*:10us:*", &err) || mesh_plan_make(&p, &d, &err)) return differ(line, what, err.text, said);
    for (k = 0; k < p.nsteps; k++)
        if (strcmp(mesh_step_name(&p, k), "copy")) strcat(strcat(is, *is ? ", " : ""), mesh_step_name(&p, k));
    if (strcmp(*is ? is : "nothing", said)) differ(line, what, *is ? is : "nothing", said);
}

static void moves(int line, const char *on, const char *rest, const char *use, const char *forward, const char *backward) {
    mesh m;
    mesh_layout a, b;
    if (mesh_parse(&m, on, 0, &err) || mesh_layout_parse(&a, &m, rest, 3, shape, &err) || mesh_layout_parse(&b, &m, use, 3, shape, &err))
        return differ(line, "layouts", err.text, rest);
    steps(line, "forward", &a, &b, forward);
    if (mesh_spec_gradient(&a.spec, &a.spec, &err) || mesh_spec_gradient(&b.spec, &b.spec, &err)) return differ(line, "backward", err.text, backward);
    steps(line, "backward", &b, &a, backward);
}

static void computes(int line, mesh_local_kind kind, const char *letters, const char *on, const char *const *operand, int n, const char *said) {
    mesh m;
    mesh_layout in[4], out;
    const mesh_layout *list[4];
    const char *at = letters;
    char is[256], wanted[256];
    mesh_spec spec;
    int k, ndim;
    if (mesh_parse(&m, on, 0, &err)) return differ(line, "mesh", err.text, on);
    for (k = 0; k < n; k++, at++) {
        for (ndim = 0; *at != ',' && *at != '-'; at++) ndim++;
        if (mesh_layout_parse(&in[k], &m, operand[k], ndim, shape, &err)) return differ(line, "operands", err.text, operand[k]);
        list[k] = &in[k];
    }
    k = mesh_layout_local(&out, kind, letters, list, n, &err);
    if (!strcmp(said, "refused")) {
        if (k == MESH_OK) differ(line, letters, "accepted", said);
        return;
    }
    if (k != MESH_OK || mesh_spec_parse(&spec, &m, said, out.ndim, &err)) return differ(line, letters, err.text, said);
    mesh_spec_format(&out.spec, &m, is, sizeof is);
    mesh_spec_format(&spec, &m, wanted, sizeof wanted);
    if (strcmp(is, wanted)) differ(line, letters, is, wanted);
}

int main(void) {
%(rows)s
    return wrong != 0;
}
"""


def code_of(cell):
    return [c.strip() for c in re.findall(r"`([^`]+)`", cell)]


def tables_of(text):
    """Each row of each table: its line's number, and its cells by the names above them."""
    names = None
    for number, line in enumerate(text.splitlines(), 1):
        cells = [c.strip() for c in re.split(r"(?<!\\)\|", line)][1:-1]
        if not cells: names = None
        elif names is None: names = cells
        elif not re.match(r"-+$", cells[0]): yield number, dict(zip(names, cells))


def quoted(text): return '"' + text.replace('"', '\\"') + '"'


def mesh_of(specs): # the axes that they name, of sizes that differ
    names = list(dict.fromkeys(re.findall(r"(\w+):", " ".join(specs))))
    return quoted(",".join(f"{name}={size}" for name, size in zip(names, (2, 3, 5))))


def layouts_of(rows):
    calls = []
    for number, row in rows:
        if "at rest" in row:
            specs = code_of(row["at rest"]) + code_of(row["used"])
            calls.append(f"moves({number}, {mesh_of(specs)}, {quoted(specs[0])}, {quoted(specs[1])}, {quoted(row['forward'])}, {quoted(row['backward'])});")
        if "operands" in row:
            specs, kind = code_of(row["operands"]), row["computation"].split()[0].upper()
            calls.append(f"{{ static const char *const in[] = {{{', '.join(map(quoted, specs))}}}; computes({number}, MESH_LOCAL_{kind}, "
                         f"{quoted(code_of(row['computation'])[0])}, {mesh_of(specs)}, in, {len(specs)}, {quoted(row['result'].strip('`'))}); }}")
    return calls


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", default="build/docs")
    a.add_argument("--mesh", default="build/mesh")
    a.add_argument("--cc", default="cc")
    a = a.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    os.makedirs(a.out, exist_ok=True)
    pages = sorted(p for p in os.listdir("docs") if re.match(r"(from-.*|zoo)\.md$", p))
    for page in pages:
        text = open(f"docs/{page}").read()
        name = page[:-3]
        rows = list(tables_of(text))
        found = [(number, code_of(row["here"])) for number, row in rows if code_of(row.get("here", ""))]
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
        calls = layouts_of(rows)
        if calls:
            source, binary = f"{a.out}/{name}-layouts.c", f"{a.out}/{name}-layouts"
            open(source, "w").write(LAYOUTS % {"rows": "\n".join("    " + c for c in calls)})
            r = subprocess.run([a.cc, "-std=c99", "-O0", "-Wall", "-Wextra", "-Werror", "-I.", source, "-o", binary], capture_output=True, text=True)
            if r.returncode == 0: r = subprocess.run([binary], capture_output=True, text=True, timeout=60)
            check(f"{page}: {len(calls)} rows of layouts", r.returncode == 0, r.stdout + r.stderr[:3000])
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
