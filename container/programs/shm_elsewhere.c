/* Shared memory in the folder SHARED_MEMORY_FOLDER in place of /dev/shm, for a program that loads this
 * with LD_PRELOAD: glibc knows no other place. See shared_memory.py. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int place(char *path, const char *name) {
  const char *folder = getenv("SHARED_MEMORY_FOLDER");
  while (*name == '/') name++;
  if (!folder || snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX) {
    errno = ENOENT;
    return -1;
  }
  return 0;
}

int shm_open(const char *name, int flags, mode_t mode) {
  char path[PATH_MAX];
  return place(path, name) ? -1 : open(path, flags | O_CLOEXEC | O_NOFOLLOW, mode);
}

int shm_unlink(const char *name) {
  char path[PATH_MAX];
  return place(path, name) ? -1 : unlink(path);
}
