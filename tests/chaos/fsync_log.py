"""Record how much of each file has been synced to the disk: what a power loss leaves at least.

A library that is preloaded into the server writes the inode and the size of a file before each `fdatasync` of it, once
that has succeeded and before the server learns of it. So an add that the server has confirmed is within the last size.
"""

import shutil
import subprocess
from pathlib import Path

__all__ = ["FsyncLog", "compiler"]

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int fdatasync(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  const char *log = getenv("FSYNC_LOG");
  struct stat file;
  int known = log != NULL && fstat(fd, &file) == 0;
  int result = real(fd);
  if (known && result == 0) {
    int out = open(log, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (out >= 0) {
      dprintf(out, "%llu %llu\n", (unsigned long long)file.st_ino, (unsigned long long)file.st_size);
      close(out);
    }
  }
  return result;
}
"""


def compiler() -> str:
    """Return the path of the C compiler; "" if there is none."""
    return shutil.which("cc") or ""


class FsyncLog:
    """The sizes of files at their last `fdatasync`. ``folder``: where the library and the log are put."""

    def __init__(self, folder: Path):
        source, self._library, self._log = folder / "fsync.c", folder / "fsync.so", folder / "fsync.log"
        source.write_text(SOURCE)
        subprocess.run(
            [compiler(), "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"], check=True
        )  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the server."""
        return {"LD_PRELOAD": str(self._library), "FSYNC_LOG": str(self._log)}

    def synced(self, file: Path) -> int:
        """Return how many bytes of the file are on the disk."""
        inode, sizes = str(file.stat().st_ino), [0]
        for line in self._log.read_text().splitlines():
            number, _, size = line.partition(" ")
            if number == inode:
                sizes.append(int(size))
        return sizes[-1]
