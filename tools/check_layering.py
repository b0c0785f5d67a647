#!/usr/bin/env python3
"""Checks what the compiler does not: which file may include which, and that no file is forgotten.

Usage: tools/check_layering.py [ROOT] [--listed build/release/listed_files.txt [--write]]

- Includes point downward: core < formats, launch, tree < device < data, nn, optim < amp, checkpoint, memory < parallel < nodes, train < cli.
- core, formats and launch take neither LibTorch nor c10.
With --listed, the list CMake writes of the headers it installs, the internal ones and the tests it compiles:
- public headers outside nn/ take c10/ and ATen/core/ of LibTorch at most;
- each header and each tests/**/*_test.cpp on disk is among them;
- bellows/bellows.h includes every public header that takes no more than that; --write makes it so.

Prints one line a fault; exits 1 where there is one.
"""

import argparse
import pathlib
import re
import sys

RANK = {"core": 0, "formats": 1, "launch": 1, "tree": 1, "device": 2, "data": 3, "nn": 3, "optim": 3, "amp": 4, "checkpoint": 4, "memory": 4, "parallel": 5, "nodes": 6, "train": 6}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
LIBTORCH = re.compile(r"^(ATen|c10|torch|caffe2|torchgen)/")
LIGHT_LIBTORCH = re.compile(r"^(c10|ATen/core|torch/headeronly)/")
SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
UMBRELLA = "bellows/bellows.h"


class Sources:
    def __init__(self, root: pathlib.Path, listed: pathlib.Path | None):
        self.root = root
        self.includes = {
            path.relative_to(root).as_posix(): [name for _, name in INCLUDE.findall(path.read_text())]
            for folder in ("bellows", "cli")
            for path in sorted((root / folder).rglob("*"))
            if path.suffix in SUFFIXES
        }
        self.tests = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("*_test.cpp"))
        self.listed = dict(reversed(line.split(" ", 1)) for line in listed.read_text().splitlines()) if listed else {}

    def headers(self):
        return [name for name in self.includes
                if name.startswith("bellows/") and name.endswith(".h") and name != UMBRELLA]

    def public_headers(self):
        return [name for name in self.headers() if self.listed.get(name, "public") == "public"]


def module(name: str) -> str:
    """The layer of a file of ours or of an include; cli is above all."""
    parts = name.split("/")
    return parts[1] if parts[0] == "bellows" and len(parts) > 2 else parts[0]


def upward(sources: Sources):
    for name, includes in sources.includes.items():
        own = module(name)
        if name == UMBRELLA or own == "cli":
            continue
        if own not in RANK:
            yield f"{name}: '{own}' has no place in the layering (tools/check_layering.py)"
            continue
        for include in includes:
            other = module(include)
            is_ours = include.startswith(("bellows/", "cli/"))
            if is_ours and other != own and RANK.get(other, 99) >= RANK[own]:
                yield f"{name}: includes {include}, and '{other}' is not below '{own}'"


def unknown(sources: Sources):
    for name, includes in sources.includes.items():
        for include in includes:
            if include.startswith("bellows/") and include not in sources.includes and ".pb." not in include:
                yield f"{name}: includes {include}, which does not exist"


def libtorch_in_core(sources: Sources):
    for name, includes in sources.includes.items():
        own = module(name)
        for include in includes:
            if own in ("core", "formats", "launch") and LIBTORCH.match(include):
                yield f"{name}: includes {include}, and {own} takes no LibTorch"


def heavy_public(sources: Sources):
    for name in sources.public_headers():
        if module(name) == "nn":
            continue
        for include in sources.includes[name]:
            if LIBTORCH.match(include) and not LIGHT_LIBTORCH.match(include):
                yield f"{name}: includes {include}; a public header takes c10/ and ATen/core/ at most"


def is_heavy(sources: Sources, name: str) -> bool:
    """Whether it takes more of LibTorch than c10/ and ATen/core/, itself or through a header of ours."""
    return any(is_heavy(sources, include) if include in sources.includes else
               LIBTORCH.match(include) and not LIGHT_LIBTORCH.match(include) for include in sources.includes[name])


def cheap_headers(sources: Sources):
    return [name for name in sources.public_headers() if not is_heavy(sources, name)]


def umbrella(sources: Sources):
    expected = set(cheap_headers(sources))
    have = {name for name in sources.includes.get(UMBRELLA, []) if name.startswith("bellows/")}
    for name in sorted(expected - have):
        yield f"{UMBRELLA}: lacks {name}; tools/check_layering.py --write adds it"
    for name in sorted(have - expected):
        yield f"{UMBRELLA}: includes {name}, which is not public or not cheap; tools/check_layering.py --write removes it"


def write_umbrella(sources: Sources):
    path = sources.root / UMBRELLA
    first = "bellows/core/error.h"
    lines = [line for line in path.read_text().splitlines()
             if not line.startswith("#include") or first in line]
    wanted = [f'#include "{name}"' for name in sorted(cheap_headers(sources)) if name != first]
    path.write_text("\n".join(lines[:-1] + wanted + lines[-1:]) + "\n")


def forgotten(sources: Sources):
    for name in sources.headers():
        if name not in sources.listed:
            yield f"{name}: is neither in HEADERS nor in INTERNAL of its bellows_module()"
    for name in sources.public_headers():
        for include in sources.includes[name]:
            if sources.listed.get(include) == "internal":
                yield f"{name}: is public and includes {include}, which is internal"
    for name in sources.tests:
        if name not in sources.listed:
            yield f"{name}: is compiled by no test program"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--listed", type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write and not options.listed:
        parser.error("--write needs --listed: which header is public stands there")
    if options.write:
        write_umbrella(Sources(options.root, options.listed))
    sources = Sources(options.root, options.listed)
    checks = [upward, unknown, libtorch_in_core] + ([heavy_public, umbrella, forgotten] if options.listed else [])
    faults = [fault for check in checks for fault in check(sources)]
    print("".join(fault + "\n" for fault in faults), end="")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
