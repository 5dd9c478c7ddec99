"""The file that Python is started with: runs the bootstrap as a module, which Python needn't compile each time."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def main() -> None:
    """Hand over to `bootstrap.main`, the package's parent folder no longer on `sys.path`."""
    above, package = os.path.split(os.path.dirname(os.path.abspath(__file__)))
    sys.path.insert(0, above)
    bootstrap = import_module(f"{package}.bootstrap")
    sys.path.remove(above)
    bootstrap.main()


if __name__ == "__main__":
    main()
