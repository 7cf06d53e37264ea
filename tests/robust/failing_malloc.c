/* Preloaded (LD_PRELOAD): lets chosen allocations of the thread that asks for it fail. See test_out_of_memory.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static __thread size_t least;
static __thread long count, first;

/* From now on the n-th allocation of so many bytes or more fails, and all after it. */
void fail_from(long n, size_t bytes) { first = n; least = bytes; count = 0; }

/* No more; how many there were. */
long fail_no_more(void) { first = 0; return count; }

static int fails(size_t size) {
    if (first == 0 || size < least || ++count < first) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails(size) ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails(n * size) ? NULL : __libc_calloc(n, size); }
void *realloc(void *data, size_t size) { return fails(size) ? NULL : __libc_realloc(data, size); }
void *aligned_alloc(size_t align, size_t size) { return fails(size) ? NULL : __libc_memalign(align, size); }
int posix_memalign(void **data, size_t align, size_t size) {
    if (fails(size)) return ENOMEM;
    return (*data = __libc_memalign(align, size)) ? 0 : ENOMEM;
}
/* The memory of large outputs. */
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    if (fails(size)) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
