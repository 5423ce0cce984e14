"""The size of the project, beside the limits that it keeps.

usage: python -m tests.support.counts     exits with 1 where a limit that was kept is exceeded
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from dispatcher.settings import rows
from tests.test_architecture import CODE, EMULATOR, PROJECT, circles, files

# Folders of the rooms, and the most lines that the files of each may have together.
ROOMS = {
    "dispatcher": (("dispatcher",), 16_520),
    "clients": (("clients",), 12_940),
    "container": (("container",), 3_580),
    "backends": (("backends",), 5_020),
    "weights": (("weights", "container/image"), 1_560),
    "tool": (("tool",), 5_260),
    "emulator": (("emulator",), 2_620),
    "bench": (("bench",), 2_370),
}
SUFFIXES = {".py", ".js", ".css", ".html"}
# Limits that are still exceeded. One that is kept has to be taken out of this list.
NOT_YET: set[str] = set()


@cache
def tracked() -> tuple[Path, ...]:
    """Return the files under version control that are there, relative to the project."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, check=True
    ).stdout.decode()
    return tuple(Path(name) for name in listed.split("\0") if (PROJECT / name).is_file())


def below(*folders: str, tests: bool = False) -> Iterator[str]:
    """Yield the text of each source file in some folders, or of the tests that lie there."""
    for path in tracked():
        inside = any(path.is_relative_to(folder) for folder in folders)
        if inside and path.suffix in SUFFIXES and ("tests" in path.parts) == tests:
            yield (PROJECT / path).read_text()


def lines(texts: Iterator[str]) -> int:
    return sum(len(text.splitlines()) for text in texts)


def lines_of_room(name: str) -> int:
    folders, _ = ROOMS[name]
    others = {folder for one, (those, _) in ROOMS.items() if one != name for folder in those}
    inner = [one for one in others if any(Path(one).is_relative_to(folder) for folder in folders)]
    return lines(below(*folders)) - lines(below(*inner))


def production() -> Iterator[str]:
    yield from below(*(folder for folders, _ in ROOMS.values() for folder in folders))


def matches(pattern: str) -> int:
    return sum(len(re.findall(pattern, text)) for text in production())


def words_of_pages() -> int:
    """Count the words of all pages but the list of changes."""
    pages = [path for path in tracked() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
    return sum(len((PROJECT / path).read_text().split()) for path in pages)


def class_names_used_twice() -> int:
    """Count the classes' names, at the top level of a module, that another of the wheel has too."""
    found: dict[str, int] = {}
    for folder in set(CODE) - {"bench", EMULATOR}:
        for path in files(folder):
            for node in ast.parse((PROJECT / path).read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name] = found.get(node.name, 0) + 1
    found.pop("TritonPythonModel")  # Triton's name for what it starts, in each model.py
    return sum(count > 1 for count in found.values())


def counts() -> dict[str, tuple[Callable[[], int], int]]:
    """Return what is counted: how, and the limit."""

    def of_room(name: str) -> Callable[[], int]:
        return lambda: lines_of_room(name)

    return {
        **{f"lines of {name}": (of_room(name), most) for name, (_, most) in ROOMS.items()},
        "lines of all rooms": (lambda: lines(production()), 49_830),
        "lines of tests": (lambda: lines(below("tests", "emulator", tests=True)), 50_610),
        "words of pages": (words_of_pages, 42_410),
        "circles of imports": (lambda: len(circles()), 0),
        "settings": (lambda: len(list(rows())), 63),
        "noqa": (lambda: matches(r"# noqa"), 55),
        "broad except": (lambda: matches(r"except (Base)?Exception\b|except:"), 45),
        "class names used twice": (class_names_used_twice, 0),
    }


def main() -> int:
    wrong = 0
    for name, (count, most) in counts().items():
        value = count()
        if value <= most:
            remark = "is kept now: take it out of NOT_YET" if name in NOT_YET else ""
        else:
            remark = "not yet" if name in NOT_YET else "is exceeded"
        wrong += remark.startswith("is ")
        print(f"{name:30} {value:7,} of {most:7,}  {remark}")  # noqa: T201 - its result
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
