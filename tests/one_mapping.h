/* With MESH_TEST_ONE_MAPPING ranks that are threads of a process have the memory of their host at one address: what one writes the thread sanitizer then sees
   another read. Between failing_calls.h and mesh_socket.h; failing_calls_end.h takes the names away again. */
#ifdef MESH_TEST_ONE_MAPPING
#include <pthread.h>
#include <sys/mman.h>

typedef struct one_map {
    ino_t file;
    unsigned char *base;
    size_t nbytes;
    int users;
} one_map;
static one_map one_maps[256];
static pthread_mutex_t one_lock = PTHREAD_MUTEX_INITIALIZER;

/* A file is first reserved, with room to begin at a huge page; then mapped there. Here it begins at one already. */
static inline void *one_reserve(size_t nbytes, int fd) {
    enum { WIDE = 2 << 20 };
    struct stat s;
    one_map *free_map = NULL;
    unsigned char *all, *base = (unsigned char *)MAP_FAILED;
    int i;
    if (fstat(fd, &s) != 0 || nbytes <= WIDE) return MAP_FAILED;
    pthread_mutex_lock(&one_lock);
    for (i = 0; i < 256 && (!one_maps[i].users || one_maps[i].file != s.st_ino); i++)
        if (!one_maps[i].users) free_map = &one_maps[i];
    if (i < 256) {
        one_maps[i].users++;
        base = one_maps[i].base;
    } else if (free_map && (all = (unsigned char *)mmap(NULL, nbytes, PROT_NONE, MAP_SHARED, fd, 0)) != (unsigned char *)MAP_FAILED) {
        size_t before = (WIDE - (uintptr_t)all % WIDE) % WIDE;
        base = all + before;
        free_map->file = s.st_ino;
        free_map->base = base;
        free_map->nbytes = nbytes - WIDE;
        free_map->users = 1;
        mmap(base, free_map->nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    pthread_mutex_unlock(&one_lock);
    return base;
}

static inline void *one_mmap(void *at, size_t nbytes, int protection, int flags, int fd, off_t from) {
    if (protection == PROT_NONE && flags == MAP_SHARED) return one_reserve(nbytes, fd);
    if (at && flags == (MAP_SHARED | MAP_FIXED)) return at;
    return mmap(at, nbytes, protection, flags, fd, from);
}

static inline int one_munmap(void *at, size_t nbytes) {
    int i, last = 1;
    pthread_mutex_lock(&one_lock);
    for (i = 0; i < 256; i++) {
        one_map *m = &one_maps[i];
        if (!m->users) continue;
        if ((unsigned char *)at == m->base + m->nbytes) last = 0; /* the room that the reservation had to spare */
        if ((unsigned char *)at == m->base) last = --m->users == 0;
    }
    pthread_mutex_unlock(&one_lock);
    return last ? munmap(at, nbytes) : 0;
}

#define mmap(at, nbytes, protection, flags, fd, from) one_mmap(at, nbytes, protection, flags, fd, from)
#define munmap(at, nbytes) one_munmap(at, nbytes)
#endif
