#!/usr/bin/env python3
"""Reports the longest source files and functions, and fails above the hard limits.

    scripts/check_sizes.py [ROOT]

The aim is files of about 500 lines and functions of about 60; the limits are where a file is
surely more than one concept. Functions are found by the layout that clang-format gives them.
"""

import pathlib
import re
import sys

from check_layers import sources

AIM_FILE, MAX_FILE = 500, 700
AIM_FUNCTION, MAX_FUNCTION = 60, 120
NUM_SHOWN = 5

# The line that ends a function's head: "...) {", "...) const {", "...) : a_(b) {".
HEAD = re.compile(r"\)[^;]*\{$")
NOT_A_FUNCTION = re.compile(r"^\s*(namespace|class|struct|enum|union|if|for|while|switch|else|do)\b")


def functions(lines):
    """Yields (number of its first line, number of lines) of each function."""
    number = 0
    while number < len(lines):
        if HEAD.search(lines[number]) and not NOT_A_FUNCTION.match(lines[number]):
            begin = head_begin(lines, number)
            close = ("  " if lines[begin].startswith("  ") else "") + "}"
            end = next((i for i in range(number + 1, len(lines)) if lines[i].startswith(close)),
                       None)
            if end is not None:
                yield begin + 1, end - begin + 1
                number = end
        number += 1


def head_begin(lines, number):
    """The line where a head begins: those that continue it are indented by 4 and more."""
    while number > 0 and lines[number].startswith("    "):
        number -= 1
    return number


def measure(root):
    """Returns ([(lines, path)], [(lines, path:line)]), each longest first."""
    files, bodies = [], []
    for path in sources(root):
        lines = (root / path).read_text(encoding="utf-8").splitlines()
        files.append((len(lines), path))
        bodies += [(length, f"{path}:{first}") for first, length in functions(lines)]
    return sorted(files, reverse=True), sorted(bodies, reverse=True)


def report(what, measured, aim, limit):
    """Prints the longest ones; returns how many are over the limit."""
    over = [entry for entry in measured if entry[0] > limit]
    above_aim = sum(1 for length, _ in measured if length > aim)
    print(f"{what}: {len(measured)}, {above_aim} above {aim} lines, {len(over)} above {limit}")
    for length, where in measured[: max(NUM_SHOWN, len(over))]:
        print(f"  {length:5} {where}{'  TOO LONG' if length > limit else ''}")
    return len(over)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files, bodies = measure(root)
    over = report("files", files, AIM_FILE, MAX_FILE)
    over += report("functions", bodies, AIM_FUNCTION, MAX_FUNCTION)
    return 1 if over or not files else 0


if __name__ == "__main__":
    sys.exit(main())
