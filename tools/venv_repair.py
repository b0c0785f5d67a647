"""Makes pip see what an interrupted install left half done.

Run by the environment's own Python. A package whose files are not all there, at their recorded sizes, loses
its metadata, so that the next `pip install` installs it again.
"""

import csv
import pathlib
import shutil
import sysconfig


def is_whole(metadata: pathlib.Path) -> bool:
    try:
        rows = list(csv.reader((metadata / "RECORD").read_text().splitlines()))
    except OSError:
        return False
    for name, _, size in rows:
        path = metadata.parent / name
        if size and not (path.is_file() and path.stat().st_size == int(size)):
            return False
    return True


def main() -> None:
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    for metadata in sorted(site.glob("*.dist-info")):
        if not is_whole(metadata):
            print(f"setup: {metadata.stem} is incomplete; it will be installed again")
            shutil.rmtree(metadata)


if __name__ == "__main__":
    main()
