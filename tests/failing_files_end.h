/* What failing_files.h has renamed has its own name again. */
#undef pwrite
#undef pread
#undef openat
#undef fsync
#undef ftruncate
#undef rename
#undef unlink
#undef opendir
#undef mkdir
#undef pthread_create
#ifndef MESH_TEST_SINGLE
#undef nanosleep
#endif
