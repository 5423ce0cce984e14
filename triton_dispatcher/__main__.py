"""The command `dispatcher` of the wheel: `python -m triton_dispatcher` is the same."""

from __future__ import annotations

import os
import runpy
import sys

from triton_dispatcher.imports import ROOT


def main() -> None:
    """Run the tool as in a checkout: with this project's folders first, for its children too."""
    sys.path.insert(0, str(ROOT))
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    runpy.run_module("tool", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
