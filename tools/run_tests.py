#!/usr/bin/env python3
"""Runs ctest, and makes skipped tests visible.

Usage: tools/run_tests.py BUILD_DIR [--jobs N] [further ctest arguments]

Skipped tests are printed with their reasons. A run in which every test of a label skips fails, except for
labels whose hardware may be absent. ctest's own summary stays at the very end of the output.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

OPTIONAL_LABELS = {"gpu"}
SUMMARY = re.compile(r"^\d+% tests passed")


def reason(output: str) -> str:
    """GoogleTest prints "file:line: Skipped", then the reason; a script's last line is its reason."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for number, line in enumerate(lines[:-1]):
        if line.endswith(": Skipped"):
            following = lines[number + 1]
            return "no reason given" if following.startswith("[") else following
    return lines[-1] if lines else "no reason given"


def read_labels(build: str) -> dict[str, list[str]]:
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"],
                           check=True, capture_output=True, text=True)
    return {
        test["name"]: next((item["value"] for item in test.get("properties", []) if item["name"] == "LABELS"), [])
        for test in json.loads(shown.stdout)["tests"]
    }


def read_results(path: pathlib.Path):
    """(name, whether it skipped, its output) of each test. Ctest calls a missing program `notrun` too."""
    for case in ET.parse(path).getroot().iter("testcase"):
        note = case.find("skipped")
        is_skip = case.get("status") == "disabled" or (
            note is not None and note.get("message", "").startswith("SKIP_"))
        yield case.get("name"), is_skip, case.findtext("system-out") or ""


def report_skips(results, labels_of) -> bool:
    """Prints the skipped tests; whether every label that must run did run."""
    ran = collections.Counter()
    skipped = collections.Counter()
    for name, is_skip, output in results:
        (skipped if is_skip else ran).update(labels_of.get(name) or ["no label"])
        if is_skip:
            print(f"skipped: {name}: {reason(output)}")
    silent = sorted(set(skipped) - set(ran) - OPTIONAL_LABELS)
    for label in silent:
        print(f"FAILED: all {skipped[label]} tests labelled '{label}' skipped: nothing of that kind was tested")
    return not silent


def main() -> int:
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].removeprefix("Usage: "))
    parser.add_argument("build")
    parser.add_argument("--jobs", default="1")
    options, further = parser.parse_known_args()
    junit = pathlib.Path(options.build).resolve() / "tests.xml"
    junit.unlink(missing_ok=True)
    command = ["ctest", "--test-dir", options.build, "--output-on-failure", "--no-tests=error",
               "--parallel", options.jobs, "--output-junit", str(junit), *further]
    held_back = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace") as ctest:
        for line in ctest.stdout:
            if held_back or SUMMARY.match(line):
                held_back.append(line)
            else:
                print(line, end="", flush=True)
    all_ran = junit.exists() and report_skips(read_results(junit), read_labels(options.build))
    print(flush=True)
    print("".join(held_back), end="", flush=True)
    return ctest.returncode or (0 if all_ran else 1)


if __name__ == "__main__":
    sys.exit(main())
