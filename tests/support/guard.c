/* Loaded into a process before its libraries (LD_PRELOAD): writes every host that is looked up, every peer that is
   connected to and every file that is opened for writing to the file that GUARD_LOG names. Nothing leaves the machine:
   only loopback names are looked up, and only loopback addresses and sockets of this machine are connected to. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static int (*real_open)(const char *, int, ...);

static void tell(const char *kind, const char *what) {
    const char *path = getenv("GUARD_LOG");
    char line[PATH_MAX + 64];
    int saved = errno, length = snprintf(line, sizeof line, "%s %s\n", kind, what);
    if (!path) return;
    if (!real_open) real_open = dlsym(RTLD_NEXT, "open");
    int log = real_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (log >= 0) {
        if (write(log, line, length) < 0) abort();
        close(log);
    }
    errno = saved;
}

static void tell_file(int directory, const char *path, int flags) {
    char whole[PATH_MAX * 2], base[PATH_MAX] = "", link[64];
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) == 0) return;
    if (path[0] != '/') {
        ssize_t length = -1;
        if (directory == AT_FDCWD) {
            if (getcwd(base, sizeof base)) length = (ssize_t)strlen(base);
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
            length = readlink(link, base, sizeof base - 1);
        }
        base[length < 0 ? 0 : length] = 0;
        snprintf(whole, sizeof whole, "%s/%s", base, path);
    } else {
        snprintf(whole, sizeof whole, "%s", path);
    }
    tell("file", whole);
}

#define OPENED(name)                                                                                                   \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*real)(const char *, int, ...);                                                                    \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = va_arg(more, mode_t);                                                                            \
        va_end(more);                                                                                                  \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                                     \
        tell_file(AT_FDCWD, path, flags);                                                                              \
        return real(path, flags, mode);                                                                                \
    }
OPENED(open)
OPENED(open64)

#define OPENED_AT(name)                                                                                                \
    int name(int directory, const char *path, int flags, ...) {                                                       \
        static int (*real)(int, const char *, int, ...);                                                               \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = va_arg(more, mode_t);                                                                            \
        va_end(more);                                                                                                  \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                                     \
        tell_file(directory, path, flags);                                                                             \
        return real(directory, path, flags, mode);                                                                     \
    }
OPENED_AT(openat)
OPENED_AT(openat64)

#define STREAM(name)                                                                                                   \
    FILE *name(const char *path, const char *mode) {                                                                   \
        static FILE *(*real)(const char *, const char *);                                                              \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                                                     \
        if (strpbrk(mode, "wa+")) tell_file(AT_FDCWD, path, O_WRONLY);                                                 \
        return real(path, mode);                                                                                       \
    }
STREAM(fopen)
STREAM(fopen64)

int mkdir(const char *path, mode_t mode) {
    static int (*real)(const char *, mode_t);
    if (!real) real = dlsym(RTLD_NEXT, "mkdir");
    tell_file(AT_FDCWD, path, O_CREAT);
    return real(path, mode);
}

static int is_home(const char *host) {
    return !host || !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1");
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real) real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!is_home(host)) {
        tell("host", host);
        return EAI_FAIL;
    }
    return real(host, service, hints, found);
}

struct hostent *gethostbyname(const char *host) {
    static struct hostent *(*real)(const char *);
    if (!real) real = dlsym(RTLD_NEXT, "gethostbyname");
    if (!is_home(host)) {
        tell("host", host);
        return NULL;
    }
    return real(host);
}

static int is_foreign(const struct sockaddr *address) {
    char text[INET6_ADDRSTRLEN] = "";
    if (address && address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, text, sizeof text);
    else if (address && address->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, text, sizeof text);
    if (!text[0] || is_home(text) || !strncmp(text, "::ffff:127.", 11)) return 0;
    tell("peer", text);
    errno = ENETUNREACH;
    return 1;
}

int connect(int sock, const struct sockaddr *address, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    return is_foreign(address) ? -1 : real(sock, address, length);
}

ssize_t sendto(int sock, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length) {
    static ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (!real) real = dlsym(RTLD_NEXT, "sendto");
    return is_foreign(address) ? -1 : real(sock, data, size, flags, address, length);
}
