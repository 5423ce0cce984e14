"""Settings of glibc's `malloc` for the programs, as environment variables."""

from __future__ import annotations

# By default glibc returns every array over 128 kB to the kernel and maps the next one again, page
# by page. Without that a 640×640 picture takes a quarter less time. Arrays of more than 32 MiB are
# returned all the same, and so is unused memory beyond 128 MiB: else an idle worker keeps 6 GB
# after a few pictures of 49 megapixels at once.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}

# By default each thread of a web worker has an arena of its own, which costs 527 instead of 401 MB
# (PSS, with its part of the tensors in shared memory) after 16 callers of YOLOv5s, at equal speed.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
