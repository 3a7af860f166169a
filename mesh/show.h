/* mesh/show.h - meshes as pictures: a rank's line, ASCII, Graphviz, SVG. Part of mesh.h 0.1.0. MIT licence.

   Includes mesh.h. Nothing else includes it but the front door.
*/
#if !defined(MESH_SHOW_H) || (defined(MESH_IMPLEMENTATION) && !defined(MESH_SHOW_IMPLEMENTED))
#include "../mesh.h"
#endif

#ifndef MESH_SHOW_H
#define MESH_SHOW_H

#ifdef __cplusplus
extern "C" {
#endif

/* ---- show: each returns the length of the whole text; at most cap - 1 bytes and a terminator are written -------------- */

/* One rank's line, the rank over the mesh's size - 1, then each axis as index/last, innermost first, axes of size 1 left out:
   "[ 3/23]: [cp:3/3][pp:0/1][dp:0/2]".
   A rank that is not a member: "[77/23]: not in the mesh". Source: ezpz. */
MESH_API size_t mesh_format_rank(const mesh *m, int rank, char *buf, size_t cap);
/* A table of ranks (last axis across) and each axis' groups, in ASCII; large meshes are elided. */
MESH_API size_t mesh_draw(const mesh *m, char *buf, size_t cap);
/* A Graphviz graph: a node per rank, an edge to each next neighbour, a colour per axis. At most 4,096 ranks are drawn. */
MESH_API size_t mesh_dot(const mesh *m, char *buf, size_t cap);
/* A picture as SVG: a cell per rank, nested boxes per outer axis, the last two axes as rows and columns. At most 4,096 ranks. */
MESH_API size_t mesh_svg(const mesh *m, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif /* MESH_SHOW_H */

/* ==================================================================================================================== */
#if defined(MESH_IMPLEMENTATION) && !defined(MESH_SHOW_IMPLEMENTED)
#define MESH_SHOW_IMPLEMENTED

MESH_API size_t mesh_format_rank(const mesh *m, int rank, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int coords[MESH_MAX_AXES], i, last = m->size - 1;
    mesh__put(&t, "[%w/%d]: ", mesh__digits(last), rank, last);
    if (mesh_coords_of(m, NULL, rank, coords) < 0) {
        mesh__put(&t, "not in the mesh");
        return t.len;
    }
    for (i = m->naxes - 1; i >= 0; i--)
        if (m->axis[i].size > 1) mesh__put(&t, "[%s:%d/%d]", m->axis[i].name, coords[i], m->axis[i].size - 1);
    return t.len;
}

MESH__RARE void mesh__spaces(mesh__text *t, int n) {
    while (n-- > 0) mesh__put_char(t, ' ');
}

enum { MESH__DRAW_COLUMNS = 16, MESH__DRAW_ROWS = 32, MESH__DRAW_GROUPS = 8 };

/* Digits of the largest rank that is drawn. */
MESH__RARE int mesh__widest_rank(const mesh *m, int rows, int columns, int shown) {
    int row, c, widest = mesh__digits(shown - 1);
    for (row = 0; row < rows && row < MESH__DRAW_ROWS; row++)
        for (c = 0; c < shown; c++) {
            int digits = mesh__digits(mesh_rank_at(m, row * columns + c));
            if (digits > widest) widest = digits;
        }
    return widest;
}

MESH__RARE void mesh__draw_groups(mesh__text *t, const mesh *m, int axis, int name_width) {
    int g, i, count = mesh_group_count(m, m->axis[axis].name);
    mesh__put(t, "  %s", m->axis[axis].name);
    mesh__spaces(t, name_width - mesh__length(m->axis[axis].name));
    for (g = 0; g < count && g < MESH__DRAW_GROUPS; g++) {
        mesh group;
        mesh_group_at(&group, m, m->axis[axis].name, g, NULL);
        mesh__put(t, " {");
        for (i = 0; i < group.size && i < MESH__DRAW_COLUMNS; i++)
            mesh__put(t, "%s%d", i ? "," : "", mesh_rank_at(&group, i));
        mesh__put(t, group.size > MESH__DRAW_COLUMNS ? ",..}" : "}");
    }
    if (count > MESH__DRAW_GROUPS) mesh__put(t, " .. (%d groups)", count);
    mesh__put_char(t, '\n');
}

MESH_API size_t mesh_draw(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int outer = m->naxes ? m->naxes - 1 : 0;
    int columns = m->naxes ? m->axis[outer].size : 1, rows = m->size / columns,
        shown = columns < MESH__DRAW_COLUMNS ? columns : MESH__DRAW_COLUMNS;
    int row, i, c, label = 0, name_width = 0, before[MESH_MAX_AXES], width = mesh__widest_rank(m, rows, columns, shown);
    mesh__put_sizes(&t, m);
    mesh__put(&t, "  %d rank%s\n\n", m->size, m->size == 1 ? "" : "s");
    for (i = 0; i < m->naxes; i++) {
        int length = mesh__length(m->axis[i].name);
        if (i < outer) label += length + 3 + mesh__digits(m->axis[i].size - 1);
        if (length > name_width) name_width = length;
        before[i] = -1;
    }
    if (m->naxes) {
        int head = mesh__length(m->axis[outer].name);
        if (label < head) label = head;
        mesh__spaces(&t, label - head);
        mesh__put(&t, "%s", m->axis[outer].name);
        for (c = 0; c < shown; c++) mesh__put(&t, " %w", width, c);
        mesh__put(&t, columns > shown ? " ..\n" : "\n");
    }
    for (row = 0; row < rows; row++) {
        int coords[MESH_MAX_AXES], rest = row, used = 0;
        if (row == MESH__DRAW_ROWS && rows > MESH__DRAW_ROWS) {
            mesh__put(&t, ".. %d rows in all\n", rows);
            break;
        }
        for (i = outer - 1; i >= 0; i--) {
            coords[i] = rest % m->axis[i].size;
            rest /= m->axis[i].size;
        }
        for (i = 0; i < outer; i++) {
            int length = mesh__length(m->axis[i].name) + 1 + mesh__digits(m->axis[i].size - 1);
            if (coords[i] != before[i]) {
                mesh__put(&t, "%s %w", m->axis[i].name, mesh__digits(m->axis[i].size - 1), coords[i]);
                for (c = i + 1; c < outer; c++) before[c] = -1;
            } else {
                mesh__spaces(&t, length);
            }
            mesh__spaces(&t, 2);
            before[i] = coords[i];
            used += length + 2;
        }
        mesh__spaces(&t, label - used);
        for (c = 0; c < shown; c++) mesh__put(&t, " %w", width, mesh_rank_at(m, row * columns + c));
        mesh__put(&t, columns > shown ? " ..\n" : "\n");
    }
    if (m->naxes) mesh__put(&t, "\ngroups\n");
    for (i = 0; i < m->naxes; i++) mesh__draw_groups(&t, m, i, name_width);
    return t.len;
}

enum { MESH__PICTURE_RANKS = 4096 };

MESH__RARE const char *mesh__color(int axis) {
    static const char *const colors[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                         "#66ccee", "#aa3377", "#777777", "#dd8833"};
    return colors[axis % 8];
}

MESH_API size_t mesh_dot(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    int i, axis, shown = m->size < MESH__PICTURE_RANKS ? m->size : MESH__PICTURE_RANKS;
    mesh__put(&t, "graph mesh {\n  label=\"");
    mesh__put_sizes(&t, m);
    mesh__put(&t, "\";\n  node [shape=box, style=rounded, fontname=\"Helvetica\"];\n");
    for (i = 0; i < shown; i++) {
        int coords[MESH_MAX_AXES], rank = mesh_rank_at(m, i);
        mesh_coords_of(m, NULL, rank, coords);
        mesh__put(&t, "  r%d [label=\"%d\\n", rank, rank);
        for (axis = 0; axis < m->naxes; axis++) mesh__put(&t, "%s%d", axis ? "," : "", coords[axis]);
        mesh__put(&t, "\"];\n");
    }
    for (axis = 0; axis < m->naxes; axis++)
        for (i = 0; i < shown; i++) {
            int rank = mesh_rank_at(m, i), next = mesh_neighbor(m, m->axis[axis].name, rank, 1, 0);
            if (next >= 0 && mesh_index_of(m, next) < shown)
                mesh__put(&t, "  r%d -- r%d [color=\"%s\", label=\"%s\"];\n", rank, next, mesh__color(axis),
                          m->axis[axis].name);
        }
    mesh__put(&t, "}\n");
    return t.len;
}

/* Nested boxes: axes 0 .. naxes-3 alternate across and down, innermost as a grid of the last two axes. */
typedef struct mesh__frame {
    int width[MESH_MAX_AXES + 1], height[MESH_MAX_AXES + 1]; /* of the box that holds axes k.. */
    int coords[MESH_MAX_AXES];
} mesh__frame;

enum { MESH__CELL_W = 44, MESH__CELL_H = 30, MESH__PAD = 8, MESH__TITLE = 18 };

MESH__RARE int mesh__frame_across(const mesh *m, int axis) { return (m->naxes - axis) % 2 == 1; }

MESH__RARE void mesh__svg_axis(mesh__text *t, const mesh *m, mesh__frame *f, int axis, int x, int y) {
    int i, grid = axis >= m->naxes - 2;
    if (axis == m->naxes) {
        int rank = mesh_rank_at_coords(m, f->coords);
        const char *fill = mesh__color(m->naxes ? f->coords[0] : 0);
        mesh__put(
            t,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"4\" fill=\"%s\" fill-opacity=\"0.25\" stroke=\"%s\"/>\n",
            x + 2, y + 2, MESH__CELL_W - 4, MESH__CELL_H - 4, fill, fill);
        mesh__put(t, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n", x + MESH__CELL_W / 2,
                  y + MESH__CELL_H / 2 + 4, rank);
        return;
    }
    for (i = 0; i < m->axis[axis].size; i++) {
        int w = f->width[axis + 1] + (grid ? 0 : 2 * MESH__PAD),
            h = f->height[axis + 1] + (grid ? 0 : MESH__PAD + MESH__TITLE);
        int left = x + (mesh__frame_across(m, axis) ? i * w : 0), top = y + (mesh__frame_across(m, axis) ? 0 : i * h);
        f->coords[axis] = i;
        if (!grid) {
            mesh__put(
                t,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                left + 3, top + 3, w - 6, h - 6, mesh__color(axis));
            mesh__put(t, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s %d</text>\n", left + MESH__PAD + 2, top + 16,
                      mesh__color(axis), m->axis[axis].name, i);
            left += MESH__PAD;
            top += MESH__TITLE;
        }
        mesh__svg_axis(t, m, f, axis + 1, left, top);
    }
}

MESH_API size_t mesh_svg(const mesh *m, char *buf, size_t cap) {
    mesh__text t = mesh__text_on(buf, cap);
    mesh__frame f;
    int k, rows = m->naxes >= 2 ? m->naxes - 2 : -1, columns = m->naxes - 1, margin = 60;
    f.width[m->naxes] = MESH__CELL_W;
    f.height[m->naxes] = MESH__CELL_H;
    for (k = m->naxes - 1; k >= 0 && m->size <= MESH__PICTURE_RANKS; k--) {
        int grid = k >= m->naxes - 2, n = m->axis[k].size;
        int w = f.width[k + 1] + (grid ? 0 : 2 * MESH__PAD), h = f.height[k + 1] + (grid ? 0 : MESH__PAD + MESH__TITLE);
        f.width[k] = mesh__frame_across(m, k) ? n * w : w;
        f.height[k] = mesh__frame_across(m, k) ? h : n * h;
    }
    if (m->size > MESH__PICTURE_RANKS) f.width[0] = 400, f.height[0] = 20;
    mesh__put(
        &t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"Helvetica,Arial,sans-serif\" font-size=\"12\">\n",
        f.width[0] + 2 * margin, f.height[0] + margin + 20);
    mesh__put(&t,
              "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"18\" font-weight=\"bold\">",
              margin);
    mesh__put_sizes(&t, m);
    mesh__put(&t, "</text>\n");
    if (m->size > MESH__PICTURE_RANKS) {
        mesh__put(&t, "<text x=\"%d\" y=\"50\">%d ranks are too many for a picture (at most %d)</text>\n</svg>\n",
                  margin, m->size, MESH__PICTURE_RANKS);
        return t.len;
    }
    if (columns >= 0)
        mesh__put(&t, "<text x=\"%d\" y=\"%d\" fill=\"#555\">%s across</text>\n", margin, 36, m->axis[columns].name);
    if (rows >= 0)
        mesh__put(&t,
                  "<text x=\"8\" y=\"%d\" fill=\"#555\">%s</text>\n<text x=\"8\" y=\"%d\" fill=\"#555\">down</text>\n",
                  margin, m->axis[rows].name, margin + 14);
    mesh__svg_axis(&t, m, &f, 0, margin, margin - 16);
    mesh__put(&t, "</svg>\n");
    return t.len;
}
#endif /* MESH_SHOW_IMPLEMENTED */
