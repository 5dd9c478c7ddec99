"""Writes the public kernels' PTX and SASS to `listings/`, each with what a probe must answer: `python listings.py`.

They are compiled here by the Triton that is installed, which needs no GPU; the first time takes some seconds.
"""

from __future__ import annotations

import json
from pathlib import Path

from grader.judge.hopper import zoo

FOLDER = Path("listings")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for listing in zoo.compiled(zoo.PUBLIC):
        file = FOLDER / f"{listing.name}.{listing.language}"
        file.write_text(listing.text, encoding="utf-8")
        file.with_name(f"{file.name}.json").write_text(json.dumps(listing.truth, indent=1) + "\n", encoding="utf-8")
        print(f"{file}  {listing.truth['generation']}")


if __name__ == "__main__":
    main()
