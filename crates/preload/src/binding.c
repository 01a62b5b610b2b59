/* Binds this library's calls to the C library. The dynamic linker binds a call to the first definition of its name, and
 * the program comes first. ISO C lets a program define functions with the names of POSIX functions. Even a program's own
 * `memcpy` must not be called here: if it accesses far memory, it needs the call that called it.
 *
 * So this library looks up each function that it imports in the C library itself, and corrects its own global offset
 * table. Variables of the C library stay as the dynamic linker has bound them, because a program may hold the copy that
 * all libraries use. So does a function that the C library does not define.
 *
 * Nothing here may call a function by its name before the names are bound. The compiler must not add such calls, so the
 * file is compiled as freestanding code. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>
#include <sys/mman.h>

#ifdef __aarch64__
#include <sys/ifunc.h>
#define R_CALL R_AARCH64_JUMP_SLOT
#define R_DATA R_AARCH64_GLOB_DAT
#define R_ADDR R_AARCH64_ABS64
#else
#define R_CALL R_X86_64_JUMP_SLOT
#define R_DATA R_X86_64_GLOB_DAT
#define R_ADDR R_X86_64_64
#endif

#define OWN __attribute__((visibility("hidden")))

extern OWN const ElfW(Ehdr) __ehdr_start;
extern OWN ElfW(Dyn) _DYNAMIC[];

/* The maximum number of libraries that the search visits: the C library, its parts in older versions, and the dynamic
 * linker. */
#define LIBRARIES_MAX 8

/* The tables of a loaded object. */
struct object {
    ElfW(Addr) base;
    const char *names;
    const ElfW(Sym) *symbols;
    const uint32_t *hash;
    const ElfW(Half) *versions;
    const char *defined, *needed; /* descriptions of versions */
    const ElfW(Rela) *calls, *others;
    size_t calls_len, others_len; /* in bytes */
};

/* A version of a symbol. `name` is NULL for the default version. */
struct version {
    const char *name;
    uint32_t hash;
};

static struct object own, libraries[LIBRARIES_MAX];
static size_t library_count;
static int error;

/* Returns the error that kept the calls from being bound, or 0. */
OWN int hanare_binding_error(void) {
    return error;
}

static int is_same(const char *one, const char *other) {
    while (*one && *one == *other)
        one++, other++;
    return *one == *other;
}

/* Returns the address in an entry of a dynamic section. Most dynamic linkers have added the base to it. */
static ElfW(Addr) absolute(ElfW(Addr) base, const ElfW(Dyn) *entry) {
    return entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr;
}

/* Reads the tables of an object from its dynamic section. `object` is zeroed. */
static void read_object(struct object *object, ElfW(Addr) base, const ElfW(Dyn) *entry) {
    object->base = base;
    for (; entry->d_tag != DT_NULL; entry++) {
        ElfW(Addr) addr = absolute(base, entry);
        switch (entry->d_tag) {
        case DT_STRTAB: object->names = (const char *)addr; break;
        case DT_SYMTAB: object->symbols = (const ElfW(Sym) *)addr; break;
        case DT_GNU_HASH: object->hash = (const uint32_t *)addr; break;
        case DT_VERSYM: object->versions = (const ElfW(Half) *)addr; break;
        case DT_VERDEF: object->defined = (const char *)addr; break;
        case DT_VERNEED: object->needed = (const char *)addr; break;
        case DT_JMPREL: object->calls = (const ElfW(Rela) *)addr; break;
        case DT_PLTRELSZ: object->calls_len = entry->d_un.d_val; break;
        case DT_RELA: object->others = (const ElfW(Rela) *)addr; break;
        case DT_RELASZ: object->others_len = entry->d_un.d_val; break;
        }
    }
}

/* Checks whether an object is the library with this name. */
static int is_called(const struct link_map *link, const char *name) {
    const char *names = NULL;
    size_t soname = 0;
    for (const ElfW(Dyn) *entry = link->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_STRTAB)
            names = (const char *)absolute(link->l_addr, entry);
        if (entry->d_tag == DT_SONAME)
            soname = entry->d_un.d_val;
    }
    return names && soname && is_same(names + soname, name);
}

/* Fills `libraries` with the loaded libraries that define versions for this library. */
static void find_libraries(void) {
    const char *at = own.needed;
    while (at) {
        const ElfW(Verneed) *need = (const ElfW(Verneed) *)at;
        const struct link_map *link = _r_debug.r_map;
        while (link && !is_called(link, own.names + need->vn_file))
            link = link->l_next;
        if (link && library_count < LIBRARIES_MAX) {
            struct object *library = &libraries[library_count];
            read_object(library, link->l_addr, link->l_ld);
            library_count += library->names && library->symbols && library->hash && library->versions;
        }
        at = need->vn_next ? at + need->vn_next : NULL;
    }
}

/* Returns the version that this library needs for its symbol number `nth`. */
static struct version needed_version(size_t nth) {
    unsigned number = own.versions ? own.versions[nth] & 0x7fff : VER_NDX_GLOBAL;
    const char *file = number > VER_NDX_GLOBAL ? own.needed : NULL;
    while (file) {
        const ElfW(Verneed) *need = (const ElfW(Verneed) *)file;
        const char *at = file + need->vn_aux;
        for (unsigned count = 0; count < need->vn_cnt; count++) {
            const ElfW(Vernaux) *version = (const ElfW(Vernaux) *)at;
            if ((version->vna_other & 0x7fff) == number)
                return (struct version){own.names + version->vna_name, version->vna_hash};
            at += version->vna_next;
        }
        file = need->vn_next ? file + need->vn_next : NULL;
    }
    return (struct version){0};
}

/* Checks whether symbol number `nth` of a library has this version. */
static int has_version(const struct object *library, size_t nth, struct version version) {
    unsigned number = library->versions[nth];
    if (!version.name)
        return !(number & 0x8000);
    const char *at = library->defined;
    while (at) {
        const ElfW(Verdef) *defined = (const ElfW(Verdef) *)at;
        const ElfW(Verdaux) *first = (const ElfW(Verdaux) *)(at + defined->vd_aux);
        if (defined->vd_ndx == (number & 0x7fff))
            return defined->vd_hash == version.hash && is_same(library->names + first->vda_name, version.name);
        at = defined->vd_next ? at + defined->vd_next : NULL;
    }
    return 0;
}

static ElfW(Addr) find(const char *name, struct version version);

/* Returns the address of the default version of a function of the C library. */
#define FIND(name) ((__typeof__(&name))find(#name, (struct version){0}))

/* Calls a function of the C library that chooses the implementation of a function for this processor. */
static ElfW(Addr) choose(ElfW(Addr) resolver) {
#ifdef __aarch64__
    unsigned long (*value)(unsigned long) = FIND(getauxval);
    __ifunc_arg_t features = {sizeof features, value ? value(AT_HWCAP) : 0, value ? value(AT_HWCAP2) : 0};
    return ((ElfW(Addr)(*)(uint64_t, const __ifunc_arg_t *))resolver)(features._hwcap | _IFUNC_ARG_HWCAP, &features);
#else
    return ((ElfW(Addr)(*)(void))resolver)();
#endif
}

/* Returns the address of a library's function, or 0. */
static ElfW(Addr) find_in(const struct object *library, const char *name, struct version version) {
    uint32_t wanted = 5381;
    for (const char *at = name; *at; at++)
        wanted = wanted * 33 + (unsigned char)*at;
    uint32_t buckets = library->hash[0], first = library->hash[1], filter_words = library->hash[2];
    const uint32_t *heads = library->hash + 4 + filter_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = heads + buckets;
    size_t nth = buckets ? heads[wanted % buckets] : 0;
    if (nth < first)
        return 0;
    for (;; nth++) {
        uint32_t hash = chains[nth - first];
        const ElfW(Sym) *symbol = &library->symbols[nth];
        unsigned type = ELF64_ST_TYPE(symbol->st_info);
        if ((hash | 1) == (wanted | 1) && symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_GNU_IFUNC) &&
            is_same(library->names + symbol->st_name, name) && has_version(library, nth, version)) {
            ElfW(Addr) addr = library->base + symbol->st_value;
            return type == STT_FUNC ? addr : choose(addr);
        }
        if (hash & 1)
            return 0;
    }
}

/* Returns the address of a function of the C library or the dynamic linker, or 0. */
static ElfW(Addr) find(const char *name, struct version version) {
    ElfW(Addr) found = 0;
    for (size_t nth = 0; nth < library_count && !found; nth++)
        found = find_in(&libraries[nth], name, version);
    return found;
}

/* Sets the protection of the table, which the dynamic linker has made read-only. Returns 0 or an error. */
static int protect(int protection) {
    unsigned long (*value)(unsigned long) = FIND(getauxval);
    int (*set)(void *, size_t, int) = FIND(mprotect);
    int *(*place)(void) = FIND(__errno_location);
    if (!value || !set || !place)
        return ENOSYS;
    ElfW(Addr) page = value(AT_PAGESZ);
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)(own.base + __ehdr_start.e_phoff);
    for (unsigned nth = 0; nth < __ehdr_start.e_phnum; nth++, header++) {
        ElfW(Addr) start = own.base + header->p_vaddr, end = (start + header->p_memsz) & -page;
        start &= -page;
        if (header->p_type == PT_GNU_RELRO && start < end && set((void *)start, end - start, protection) != 0)
            return *place();
    }
    return 0;
}

/* Binds the calls of one table. The first entry that differs makes the table writable, for most programs define none of
 * these functions. */
static void bind_calls(const ElfW(Rela) *entry, size_t count, int *is_writable) {
    for (; count > 0 && !error; count--, entry++) {
        unsigned type = ELF64_R_TYPE(entry->r_info);
        size_t nth = ELF64_R_SYM(entry->r_info);
        const ElfW(Sym) *symbol = &own.symbols[nth];
        unsigned kind = ELF64_ST_TYPE(symbol->st_info);
        if ((type != R_CALL && type != R_DATA && type != R_ADDR) || symbol->st_shndx != SHN_UNDEF ||
            (kind != STT_FUNC && kind != STT_NOTYPE) || entry->r_addend != 0)
            continue;
        ElfW(Addr) *place = (ElfW(Addr) *)(own.base + entry->r_offset);
        ElfW(Addr) found = find(own.names + symbol->st_name, needed_version(nth));
        /* The C library may lack a function that this library only calls if it exists. */
        if (*place == found || (!found && ELF64_ST_BIND(symbol->st_info) != STB_WEAK))
            continue;
        if (!*is_writable)
            error = protect(PROT_READ | PROT_WRITE);
        *is_writable = 1;
        if (!error)
            *place = found;
    }
}

/* Runs before the other constructors of this library. */
__attribute__((constructor(101))) static void bind_all(void) {
    int is_writable = 0;
    read_object(&own, (ElfW(Addr))&__ehdr_start, _DYNAMIC);
    find_libraries();
    if (library_count == 0) /* another C library, which has no versions */
        return;
    bind_calls(own.others, own.others_len / sizeof *own.others, &is_writable);
    bind_calls(own.calls, own.calls_len / sizeof *own.calls, &is_writable);
    if (is_writable && !error)
        error = protect(PROT_READ);
}
