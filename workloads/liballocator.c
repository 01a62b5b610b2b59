/* An allocator as a library with which programs are linked. Like tcmalloc, it also defines the C library's internal
 * names. It hands out new memory for each block and never uses a block again. It ends the process in two cases: if it
 * is entered during its own request for more memory, or if it gets a block of another allocator. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define AREA ((size_t)1 << 22)
#define MARK 0x616c6c6f6361746full
#define EXPORT __attribute__((visibility("default")))

static char *at, *end;
static char lock;
static __thread int mapping __attribute__((tls_model("initial-exec")));

struct head {
    size_t mark;
    size_t size;
};

static _Noreturn void end_with(const char *text) {
    if (write(2, text, strlen(text)) < 0)
        _exit(98);
    _exit(99);
}

static void *take(size_t align, size_t size) {
    if (mapping)
        end_with("allocator: entered while it maps memory\n");
    if (align < 16)
        align = 16;
    if (size > (size_t)1 << 40 || align > AREA)
        return NULL;
    size_t wanted = size + align + sizeof(struct head);
    while (__atomic_test_and_set(&lock, __ATOMIC_ACQUIRE))
        ;
    if ((size_t)(end - at) < wanted) {
        size_t area = wanted > AREA ? (wanted + 4095) & ~(size_t)4095 : AREA;
        mapping = 1;
        char *more = mmap(NULL, area, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mapping = 0;
        if (more == MAP_FAILED) {
            __atomic_clear(&lock, __ATOMIC_RELEASE);
            return NULL;
        }
        at = more;
        end = more + area;
    }
    char *block = (char *)(((uintptr_t)at + sizeof(struct head) + align - 1) & ~(align - 1));
    at = block + size;
    __atomic_clear(&lock, __ATOMIC_RELEASE);
    struct head head = {MARK, size};
    memcpy(block - sizeof head, &head, sizeof head);
    return block;
}

static struct head head_of(const void *block) {
    struct head head;
    memcpy(&head, (const char *)block - sizeof head, sizeof head);
    if (head.mark != MARK)
        end_with("allocator: got a block that is not its own\n");
    return head;
}

EXPORT void *own_malloc(size_t size) { return take(16, size); }

EXPORT void own_free(void *block) {
    if (block != NULL)
        head_of(block);
}

EXPORT void *own_calloc(size_t count, size_t size) {
    size_t total;
    /* Fresh memory is zero, and no memory is handed out twice, so nothing needs to be cleared. */
    return __builtin_mul_overflow(count, size, &total) ? NULL : take(16, total);
}

EXPORT void *own_realloc(void *old, size_t size) {
    void *block = take(16, size);
    if (block != NULL && old != NULL) {
        size_t kept = head_of(old).size;
        memcpy(block, old, kept < size ? kept : size);
    }
    return block;
}

EXPORT void *own_memalign(size_t align, size_t size) { return take(align, size); }

EXPORT int posix_memalign(void **out, size_t align, size_t size) {
    void *block = take(align, size);
    if (block == NULL)
        return ENOMEM;
    *out = block;
    return 0;
}

#define SAME(name) __attribute__((alias(#name), visibility("default")))
void *malloc(size_t) SAME(own_malloc);
void *__libc_malloc(size_t) SAME(own_malloc);
void free(void *) SAME(own_free);
void __libc_free(void *) SAME(own_free);
void *calloc(size_t, size_t) SAME(own_calloc);
void *__libc_calloc(size_t, size_t) SAME(own_calloc);
void *realloc(void *, size_t) SAME(own_realloc);
void *__libc_realloc(void *, size_t) SAME(own_realloc);
void *memalign(size_t, size_t) SAME(own_memalign);
void *__libc_memalign(size_t, size_t) SAME(own_memalign);
void *aligned_alloc(size_t, size_t) SAME(own_memalign);
