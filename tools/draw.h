/* mesh draw and mesh table: what a mesh looks like, which meshes there are. */
#ifndef TOOL_DRAW_H
#define TOOL_DRAW_H

static int command_draw(int argc, char **argv) {
    mesh m;
    mesh_error err;
    char *text;
    size_t n;
    if (argc == 1 && is_help(argv[0])) {
        printf(
            "usage: mesh draw \"pp=2,dp=2,tp=2\"\n\nDraws the ranks of a mesh, last axis across, and the groups along each axis.\n");
        return 0;
    }
    if (argc != 1) return wrong("draw", "expected one mesh, as in mesh draw \"dp=2,tp=4\"", NULL);
    if (mesh_parse(&m, argv[0], 0, &err)) return wrong("draw", err.text, NULL);
    n = mesh_draw(&m, NULL, 0);
    text = (char *)malloc(n + 1);
    if (!text) return wrong("draw", "no memory", NULL);
    mesh_draw(&m, text, n + 1);
    fputs(text, stdout);
    free(text);
    return 0;
}

#endif
