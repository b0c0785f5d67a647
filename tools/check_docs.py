#!/usr/bin/env python3
"""Checks the documentation against the project.

Usage: tools/check_docs.py [FILE.md…]   (default: every Markdown file that git knows; BUILD_DIR: build/release)

- Relative links lead to a file that exists, and to one of its headings where they name one.
- In ```sh blocks: a `make` target exists, and so do programs and scripts of the project (tools/, build/release/bin/).
- In ```cpp test blocks: the code compiles on its own, with the LibTorch of the build.
- A ```cpp or ```python block under `<!-- the same as FILE -->` is that file, which the tests compile and run.

Prints one line a fault; exits 1 where there is one.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("BUILD_DIR", ROOT / "build/release"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COPY = re.compile(r"<!-- the same as (\S+) -->\n```(?:cpp|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def anchors(path: pathlib.Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(page: pathlib.Path, text: str):
    for target in LINK.findall(BLOCK.sub("", text)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            yield f"the link {target} names no heading of {path.name}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_commands(block: str):
    for line in block.splitlines():
        words = line.split("#")[0].removeprefix("$ ").split()
        words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if words[:1] == ["make"]:
            for target in words[1:]:
                if not target.startswith("-") and target not in make_targets():
                    yield f"`{line.strip()}`: make has no target {target}"
        for word in words:
            if re.match(r"(tools|benchmarks|examples|configs|\.ci)/", word) and not (ROOT / word).exists():
                yield f"`{line.strip()}`: {word} does not exist"
        if words and words[0] in ("bellows", "build/release/bin/bellows") and len(words) > 1:
            yield from check_subcommand(line, words[1])


def check_subcommand(line: str, name: str):
    program = BUILD / "bin/bellows"
    if not program.exists():
        yield f"`{line.strip()}`: cannot be checked, {program} is not built"
    elif subprocess.run([program, name, "--help"], capture_output=True).returncode != 0:
        yield f"`{line.strip()}`: bellows has no command {name}"


def compile_flags() -> list[str]:
    """Those of a source of the library that sees LibTorch."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    words = next(c["command"] for c in commands if c["file"].endswith("bellows/tree/tree.cpp")).split()
    return [word for i, word in enumerate(words)
            if word.startswith(("-I", "-std=")) or word == "-isystem" or words[i - 1] == "-isystem"]


def check_code(block: str):
    result = subprocess.run(["g++", *compile_flags(), "-fsyntax-only", "-x", "c++", "-"],
                            input=block, text=True, capture_output=True)
    if result.returncode != 0:
        error = next((line for line in result.stderr.splitlines() if "error:" in line), result.stderr.strip())
        yield f"the code that begins with `{block.splitlines()[0]}` does not compile: {error}"


def check_copies(text: str):
    for name, block in COPY.findall(text):
        if not (ROOT / name).exists() or (ROOT / name).read_text() != block:
            yield f"the code that claims to be {name} is not"


def check(page: pathlib.Path):
    text = page.read_text()
    yield from check_copies(text)
    yield from check_links(page, text)
    for kind, block in BLOCK.findall(text):
        if kind == "sh":
            yield from check_commands(block)
        elif kind == "cpp test":
            yield from check_code(block)


def main() -> int:
    names = sys.argv[1:] or subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, text=True, check=True,
                                           capture_output=True).stdout.splitlines()
    faults = [f"{name}: {fault}" for name in names for fault in check((ROOT / name).resolve())]
    print("".join(fault + "\n" for fault in faults), end="")
    print(f"docs: {len(names)} pages, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
