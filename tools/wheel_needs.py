"""Prints, as requirements, the CUDA runtime and CUPTI wheels that the torch installed here asks for.

Run by the environment's own Python. They are all that libtorch_cpu of a wheel with CUDA needs to be loaded.
"""

import importlib.metadata
import re

RUNTIME = re.compile(r"^(nvidia-cuda-(?:runtime|cupti)[a-z0-9-]*)\s*\(?(==[0-9.]+)")
TOOLKIT = re.compile(r"^cuda-toolkit\[.*\]\s*\(?(==[0-9.]+)")


def main() -> None:
    for requirement in importlib.metadata.requires("torch") or []:
        if match := RUNTIME.match(requirement):
            print(match[1] + match[2])
        elif match := TOOLKIT.match(requirement):
            print(f"cuda-toolkit[cudart,cupti]{match[1]}")


if __name__ == "__main__":
    main()
