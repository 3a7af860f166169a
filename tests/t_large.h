/* Messages above 4 GiB, in little memory: one stretch of pages stands for all of a buffer but its last page and the one that ends at 4 GiB. */
#ifndef T_LARGE_H
#define T_LARGE_H

#if defined(__linux__) && SIZE_MAX > 0xffffffff && !defined(MESH_POSIX_ONLY)
#include <sys/mman.h>

enum { LARGE_STRETCH = 1 << 22, LARGE_PAGE = 1 << 16 };
#define LARGE_BYTES ((size_t)1 << 32 | 3 * LARGE_PAGE | 24)

/* NULL: no address space for it. */
static unsigned char *large_map(void) {
    size_t room = (LARGE_BYTES / LARGE_STRETCH + 1) * LARGE_STRETCH, at;
    char name[] = "/tmp/mesh-large-XXXXXX";
    int fd = mkstemp(name);
    unsigned char *p;
    CHECK(fd >= 0);
    unlink(name);
    CHECK_INT(ftruncate(fd, LARGE_STRETCH + 2 * LARGE_PAGE), 0);
    p = (unsigned char *)mmap(NULL, room, PROT_NONE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return NULL;
    for (at = 0; at < room; at += LARGE_STRETCH)
        CHECK(mmap(p + at, LARGE_STRETCH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == p + at);
    at = ((size_t)1 << 32) - LARGE_PAGE; /* ... and two of their own */
    CHECK(mmap(p + at, LARGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, LARGE_STRETCH) == p + at);
    at = (LARGE_BYTES - 1) / LARGE_PAGE * LARGE_PAGE;
    CHECK(mmap(p + at, LARGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, LARGE_STRETCH + LARGE_PAGE) ==
          p + at);
    close(fd);
    return p;
}

static void large_message_rank(mesh_transport *t, void *ctx) {
    static const size_t places[] = {
        0, 5, ((size_t)1 << 32) - LARGE_PAGE, ((size_t)1 << 32) - 1, (size_t)1 << 32, LARGE_BYTES - 9};
    unsigned char *p = large_map(), after = 0;
    uint64_t sent = 0, received = 0;
    mesh_comm c;
    size_t i;
    (void)ctx;
    if (!p || !open_comm(t, &c, "x=2", NULL, 120 * SECOND)) return;
    p[LARGE_BYTES] = 77; /* the byte behind */
    if (t->rank == 0)
        for (i = 0; i < sizeof places / sizeof places[0]; i++)
            p[places[i]] = (unsigned char)(places[i] >> 16 ^ places[i] ^ 0xa5);
    if (t->rank == 0)
        CHECK_OK(mesh_send(&c, NULL, 1, p, LARGE_BYTES / 8, MESH_F64), c.error);
    else
        CHECK_OK(mesh_recv(&c, NULL, 0, p, LARGE_BYTES / 8, MESH_F64), c.error);
    for (i = 0; i < sizeof places / sizeof places[0]; i++)
        CHECK_INT(p[places[i]], (unsigned char)(places[i] >> 16 ^ places[i] ^ 0xa5));
    CHECK_INT(p[LARGE_BYTES], 77);
    mesh_comm_bytes(&c, NULL, &sent, &received);
    CHECK_INT(t->rank == 0 ? sent : received, LARGE_BYTES);
    after = (unsigned char)(t->rank == 0);
    CHECK_OK(mesh_broadcast(&c, NULL, &after, &after, 1, MESH_U8, 0), c.error); /* the stream is in step */
    CHECK_INT(after, 1);
    CHECK_OK(mesh_comm_close(&c), c.error);
}

static void test_large_sim(void) { run_world(SIM, 2, large_message_rank, NULL); }
static void test_large_tcp(void) { run_world(TCP, 2, large_message_rank, NULL); }
static void test_large_unix(void) { run_world(UNIX, 2, large_message_rank, NULL); }
static void test_large_shared(void) { run_world(SHARED, 2, large_message_rank, NULL); }

static const test_case large_tests[] = {
    {"large/sim", test_large_sim, 0},
    {"large/tcp", test_large_tcp, 0},
    {"large/unix", test_large_unix, 0}, {"large/shared", test_large_shared, 0},
};
#else
static void test_large_none(void) { printf("    skip: no 64-bit address space, or no Linux\n"); }
static const test_case large_tests[] = {{"large/none", test_large_none, 0}};
#endif

#endif
