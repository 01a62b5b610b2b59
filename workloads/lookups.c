/* lookups [SIZE]
 *
 * Functions that a program looks up itself must do the same as the functions that it is linked with. It looks them up
 * in a library that is loaded with its own dependencies first (libplugin.c), and in the C library by its handle. SIZE
 * (16M) exceeds local memory. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static size_t size = 16 * MIB;
static uint64_t *ballast;

/* Accesses so much memory that all other pages are evicted. */
static void crowd(void) {
    fill_words(ballast, size / 8, 3, 0);
    check_words(ballast, size / 8, 3, 0, "ballast");
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    REQUIRE(found, "%s is not found: %s", name, dlerror());
    return found;
}

/* Checks the bytes that `give` writes to a pipe from evicted memory. */
static void check_writing(ssize_t (*give)(int, const void *, size_t), const char *whose) {
    int ends[2];
    uint64_t *words = malloc(MIB), read_back[PAGE / 8];
    CALL(words && pipe(ends) == 0);
    fill_words(words, MIB / 8, 5, 0);
    crowd();
    CALL(give(ends[1], words + PAGE / 8, PAGE) == (ssize_t)PAGE);
    CALL(read(ends[0], read_back, PAGE) == (ssize_t)PAGE);
    check_words(read_back, PAGE / 8, 5, PAGE / 8, whose);
    free(words);
    close(ends[0]);
    close(ends[1]);
}

/* Frees blocks of each allocator with the other one. */
static void check_blocks(void *(*take)(size_t), void (*give)(void *), const char *whose) {
    for (size_t bytes = 64; bytes <= MIB; bytes *= 4) {
        uint64_t *theirs = take(bytes), *ours = malloc(bytes);
        CALL(theirs && ours);
        fill_words(theirs, bytes / 8, bytes, 0);
        fill_words(ours, bytes / 8, bytes + 1, 0);
        crowd();
        check_words(theirs, bytes / 8, bytes, 0, whose);
        check_words(ours, bytes / 8, bytes + 1, 0, whose);
        free(theirs);
        give(ours);
    }
}

/* Checks code in a page that is returned to the system and written again. */
static void check_code(void *library) {
    int (*protect)(void *, size_t, int) = find(library, "mprotect");
    void *(*take)(size_t) = find(library, "valloc");
    void (*give)(void *) = find(library, "free");
    for (int round = 0; round < 20; round++) {
        unsigned char *pages[2] = {take(PAGE), mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
        for (int nth = 0; nth < 2; nth++) {
            CALL(pages[nth] && pages[nth] != MAP_FAILED);
            memset(pages[nth], 'A', PAGE);
            CALL(protect(pages[nth], 20, PROT_READ | PROT_EXEC) == 0);
            REQUIRE(pages[nth][PAGE - 1] == 'A', "what was written is gone");
        }
        CALL(protect(pages[0], PAGE, PROT_READ | PROT_WRITE) == 0);
        give(pages[0]);
        CALL(munmap(pages[1], PAGE) == 0);
    }
}

static void handle_of_the_library(void) {
    void *library = dlopen("libc.so.6", RTLD_NOW);
    REQUIRE(library, "no libc.so.6: %s", dlerror());
    check_writing((ssize_t(*)(int, const void *, size_t))find(library, "write"), "by the handle's write");
    check_blocks((void *(*)(size_t))find(library, "malloc"), (void (*)(void *))find(library, "free"), "by the handle");
    check_code(library);
    ssize_t (*give)(int, const void *, size_t) = dlvsym(library, "write", "GLIBC_2.2.5");
#ifdef __x86_64__
    REQUIRE(give, "no write of that version: %s", dlerror());
#endif
    if (give)
        check_writing(give, "by the write of a version");
    REQUIRE(dlsym(library, "no such function") == NULL && dlerror() != NULL, "a name that nobody has is found");
    dlclose(library);
}

/* Loads a library that is found only by the program's own run path. */
static void library_with_its_own_needs(void) {
    void *library = dlopen("libplugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    REQUIRE(library, "no libplugin.so: %s", dlerror());
    check_blocks(find(library, "plugin_malloc"), find(library, "plugin_free"), "by a plugin");
    check_writing(find(library, "plugin_write"), "by a plugin's write");
    CALL(dlclose(library) == 0);
}

static void what_others_see(void) {
    check_writing((ssize_t(*)(int, const void *, size_t))find(RTLD_DEFAULT, "write"), "by the first write");
    check_writing((ssize_t(*)(int, const void *, size_t))find(RTLD_NEXT, "write"), "by the next write");
    REQUIRE(find(RTLD_NEXT, "qsort") == find(RTLD_DEFAULT, "qsort"), "qsort is in two places");
}

int main(int argc, char **argv) {
    if (argc > 1)
        size = parse_size(argv[1]);
    CALL(ballast = malloc(size));
    handle_of_the_library();
    library_with_its_own_needs();
    what_others_see();
    printf("ok lookups: %zu\n", size);
    return 0;
}
