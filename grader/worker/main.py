"""What the launcher starts: finds the package that this file lies in and serves requests until the judge hangs up."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def main() -> None:
    """Serve; never returns. The package's parent folder leaves `sys.path` before anything of a submission loads."""
    sys.dont_write_bytecode = True
    folder = os.path.dirname(os.path.abspath(__file__))
    above, package = os.path.split(folder)
    sys.path.insert(0, above)
    serve = import_module(f"{package}.serve")
    sys.path.remove(above)
    serve.run()


if __name__ == "__main__":
    main()
