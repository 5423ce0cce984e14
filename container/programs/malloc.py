"""What the programs tell glibc's `malloc`."""

from __future__ import annotations

# glibc gives back every array over 128 kB to the kernel and maps the next one anew, page by page.
# Kept instead, a 640×640 picture costs a quarter less time. Larger arrays than those of one run of
# a model are given back all the same, and so is what lies unused beyond 128 MiB: else a few
# pictures of 49 megapixels at once leave 6 GB with an idle worker.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(128 * 2**20),
    "MALLOC_TOP_PAD_": str(16 * 2**20),
}

# Else glibc keeps memory for each of the web worker's threads apart: 527 instead of 401 MB (PSS,
# its part of the tensors in shared memory included) after 16 callers of YOLOv5s, at the same speed.
FEW_ARENAS = {"MALLOC_ARENA_MAX": "2"}
