#!/usr/bin/env python3
"""Checks which folder includes what: the arrows of docs/README.md point down only.

    scripts/check_layers.py [ROOT]

Prints one line per violation and exits with 1 where there is one.
"""

import pathlib
import re
import sys

# Folder -> the folders whose headers it may include besides its own and include/deltafin. A file
# belongs to the longest folder that matches. This table is the rule; nothing else states it.
LAYERS = {
    "include/deltafin": [],
    "src/base": [],
    "src/io": ["src/base"],
    "src/device": ["src/base"],
    "src/device/cpu": ["src/base", "src/device"],
    "src/device/vulkan": ["src/base", "src/device"],
    "src/text": ["src/base", "src/io"],
    "src/store": ["src/base", "src/io", "src/device"],
    "src/model": ["src/base", "src/io", "src/device", "src/store"],
    "src/engine": ["src/base", "src/io", "src/device", "src/device/cpu", "src/device/vulkan",
                   "src/store", "src/model", "src/text"],
    "src/server": ["src/base", "src/io"],
    "src/hub": ["src/base", "src/io", "src/store"],
    "apps": ["src/server", "src/hub"],
}

# What crosses modules by nature may include every folder of src.
CROSSING = ["tests", "fuzz", "bench"]

# Tests beside the code may also include the backend that they run on, and tests' own headers.
TEST_EXTRA = ["src/device/cpu", "src/device/vulkan", "tests"]

# Third-party header (a name, or a folder and what lies in it) -> the only folder that includes it.
# The longest entry counts.
THIRD_PARTY = {
    "fmt": "src/base",
    "nlohmann": "include/deltafin",
    "openssl": "src/io",
    "xxhash.h": "src/io",
    "liburing.h": "src/io",
    "boost": "src/text",
    "boost/asio": "src/server",
    "boost/beast": "src/server",
    "CLI": "apps",
    "curl": "src/hub",
    "histedit.h": "apps",
    "vulkan": "src/device/vulkan",
    "dlfcn.h": "src/device/vulkan",
    # Kernels are compiled once per instruction set: an inline function that a C++ header brings
    # along would exist in several forms, of which the linker keeps any one.
    "stdint.h": "src/device/cpu",
    "stddef.h": "src/device/cpu",
}
# Measures what the kernels of an instruction set could reach at most.
PEAK_LOOPS = ("src/device/cpu/peak_loops.cc",)

# Instruction sets are named where kernels are.
INTRINSICS = ["immintrin.h", "arm_neon.h"]
INTRINSICS_FOLDERS = ["src/device/cpu"]

# The reference model in tests/ shares no code with the engine, so it reads its files by itself.
REFERENCE_THIRD_PARTY = ["nlohmann"]

# The operating system's headers -> the folders that may talk to it.
SYSTEM = re.compile(r"^(sys|linux|mach|mach-o|netinet|arpa)/|^(unistd|fcntl|sched|pthread|poll|dirent|termios|signal|stdlib|malloc)\.h$")
SYSTEM_FOLDERS = ["src/base", "src/io", "src/server", "src/hub", "apps"]

# Only for tests and benchmarks, wherever they lie.
TEST_HEADERS = re.compile(r"^(gtest|gmock|benchmark|unicode)/|^httplib\.h$")

# What is compiled into tests and benchmarks only.
TEST_FILES = re.compile(r"_(test|bench)\.cc$|_test_util\.(h|cc)$|/testing/")

STANDARD = re.compile(r"^[a-z0-9_]+$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path):
    """The folder of the table that a path (relative to the root) belongs to, or None."""
    names = list(LAYERS) + CROSSING
    found = [name for name in names if path.startswith(name + "/")]
    return max(found, key=len, default=None)


def is_test(path):
    return folder_of(path) in CROSSING or TEST_FILES.search(path)


def resolve(root, path, header):
    """Where a quoted header lies, relative to the root, or None."""
    candidates = ["src/" + header, "include/" + header, header]
    if is_test(path):
        candidates.append("tests/" + header)
    if folder_of(path) in CROSSING + ["apps"]:
        candidates.append(str(pathlib.PurePosixPath(path).parent / header))
    return next((c for c in candidates if (root / c).is_file()), None)


def check_quoted(root, path, header):
    target = resolve(root, path, header)
    if target is None:
        return f'"{header}" is not in src/ or include/ (includes are written from there)'
    source, used = folder_of(path), folder_of(target)
    if used is None:
        return f'"{header}" lies in no folder of the table'
    allowed = [source, "include/deltafin"] + LAYERS.get(source, [])
    if source in CROSSING:
        allowed += [name for name in LAYERS if name.startswith("src/")] + CROSSING
    if is_test(path):
        allowed += TEST_EXTRA
    if used not in allowed:
        return f'{source} may not include {used} ("{header}")'
    return None


def check_angled(path, header):
    source = folder_of(path)
    if STANDARD.match(header):
        return None
    if TEST_HEADERS.match(header):
        return None if is_test(path) else f"<{header}> is for tests and benchmarks only"
    if SYSTEM.match(header):
        if source in SYSTEM_FOLDERS or is_test(path):
            return None
        return f"<{header}>: {source} does not talk to the operating system"
    if header in INTRINSICS:
        return None if source in INTRINSICS_FOLDERS else f"<{header}>: kernels are in src/device/cpu"
    if source == "tests" and header.split("/")[0] in REFERENCE_THIRD_PARTY:
        return None
    if path in PEAK_LOOPS and header in ("immintrin.h", "arm_neon.h"):
        return None
    parts = header.split("/")
    beginnings = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
    owner = next((THIRD_PARTY[name] for name in beginnings if name in THIRD_PARTY), None)
    if owner is None:
        return f"<{header}> is not in the table of scripts/check_layers.py"
    if owner != source:
        return f"<{header}> is included by {owner} only"
    return None


def check_file(root, path):
    """The violations in one file, as 'path:line: what'."""
    if folder_of(path) is None:
        return [f"{path}:1: the folder is not in the table of scripts/check_layers.py"]
    problems = []
    text = (root / path).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        problem = check_quoted(root, path, header) if quote == '"' else check_angled(path, header)
        if problem:
            problems.append(f"{path}:{number}: {problem}")
    return problems


def sources(root):
    """Every source file below the folders that hold code, relative to the root."""
    for top in ["include", "src", "apps", "tests", "fuzz", "bench"]:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".inc"):
                yield path.relative_to(root).as_posix()


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    paths = list(sources(root))
    problems = [problem for path in paths for problem in check_file(root, path)]
    for problem in problems:
        print(problem)
    print(f"check_layers: {len(paths)} files, {len(problems)} violations")
    return 1 if problems or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
