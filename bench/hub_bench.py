#!/usr/bin/env python3
"""Setup against curl: the same nginx on loopback, the same ranges, as many connections.

    bench/hub_bench.py build/release/deltafin [--gb 4] [--jobs 8] [--rounds 3] [--dir FOLDER]
                       [--json]

Serves a checkpoint of K3's layout whose weights are holes, so that the disk is busy with what
arrives only. Needs twice --gb of disk for a while. Prints the median of the rounds, and the
targets.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
os.environ.setdefault("DELTAFIN_PROGRAM", sys.argv[1] if len(sys.argv) > 1 else "deltafin")
os.environ.setdefault("DELTAFIN_SOURCE_DIR", str(pathlib.Path(__file__).resolve().parent.parent))
from report import at_least, at_most, show  # noqa: E402
from setup_cli_test import Nginx, PATH  # noqa: E402

EXPERT = 17_547_264


def used_by(command, env=None, **kwargs):
    """Runs it: seconds, CPU seconds, bytes written, most memory, output."""
    start = time.monotonic()
    process = subprocess.Popen(command, env=env, **kwargs)
    output = process.stdout.read() if process.stdout else b""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[:3]}: exit {process.returncode}")
    return {"seconds": time.monotonic() - start, "cpu": usage.ru_utime + usage.ru_stime,
            "written": usage.ru_oublock * 512, "rss": usage.ru_maxrss * 1024, "output": output}


def curl(url_base, shards, jobs, folder):
    """Every shard in ranges of an expert, as setup asks for them; to files, or to nowhere."""
    lines = []
    for name, size in shards:
        for at in range(0, size, EXPERT):
            target = "/dev/null" if folder is None else f"{folder}/{name}.{at}"
            lines.append(f'url = "{url_base}/{name}"\nrange = "{at}-{min(at + EXPERT, size) - 1}"\n'
                         f'output = "{target}"\nnext\n')
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write("".join(lines).removesuffix("next\n"))
        config.flush()
        return used_by(["curl", "--no-progress-meter", "--http1.1", "--parallel", "--parallel-max",
                        str(jobs), "--config", config.name])


def setup(program, folder, port, *args):
    """A full setup from nginx into `folder`, then removed: as used_by, and its last event."""
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{port}", "HF_TOKEN": "",
           "no_proxy": "127.0.0.1"}
    used = used_by([program, "setup", "--dir", folder, "--revision", "main", "--full",
                    "--skip-verify", "--yes", "--json", *args], env=env, stdout=subprocess.PIPE)
    shutil.rmtree(folder)
    return {**used, "done": json.loads(used["output"].splitlines()[-1])}


def compare(args, folder):
    """Setup and curl in turns: the results of each, and the targets."""
    root = folder + "/files"
    experts = max(16, min(896, int((args.gb * 1e9 - 3.7e9) / EXPERT)))
    subprocess.run([args.program, "synth", root, "--skeleton", "--layers", "2", "--experts",
                    str(experts), "--vocab", "512"], check=True, stderr=subprocess.DEVNULL)
    shards = [(n, os.path.getsize(f"{root}/{n}")) for n in sorted(os.listdir(root))
              if n.endswith(".safetensors")]
    gb = sum(size for _, size in shards) / 1e9
    nginx = Nginx(root)
    rounds = []
    try:
        base = f"http://127.0.0.1:{nginx.port}{PATH}"
        for _ in range(args.rounds):
            os.sync()
            nowhere = curl(base, shards, args.jobs, None)
            os.makedirs(folder + "/curl")
            files = curl(base, shards, args.jobs, folder + "/curl")
            shutil.rmtree(folder + "/curl")
            os.sync()
            ours = setup(args.program, folder + "/ours", nginx.port, "--jobs", str(args.jobs))
            fetched = ours["done"]["fetched_bytes"] / 1e9
            rate = fetched / ours["done"]["seconds"]
            rounds.append({
                "nowhere": gb / nowhere["seconds"], "files": gb / files["seconds"],
                "files cpu": files["cpu"] / gb, "files written": files["written"] / 1e9 / gb,
                "ours": rate, "part": rate * files["seconds"] / gb, "cpu": ours["cpu"] / fetched,
                "written": ours["written"] / 1e9 / fetched, "rss": ours["rss"] / 1e6})
    finally:
        nginx.stop()
        shutil.rmtree(root)
    median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
    results = [
        {"op": "curl to nowhere", "gb": gb, "connections": args.jobs,
         "gb_per_s": median["nowhere"]},
        {"op": "curl to files", "gb": gb, "connections": args.jobs, "gb_per_s": median["files"],
         "cpu_s_per_gb": median["files cpu"], "written_per_byte": median["files written"]},
        {"op": "setup", "gb": gb, "connections": args.jobs, "gb_per_s": median["ours"],
         "of_curl_to_files": median["part"], "cpu_s_per_gb": median["cpu"],
         "written_per_byte": median["written"], "peak_mb": median["rss"]}]
    targets = [at_least("setup's rate to that of curl to files", 0.95, median["part"]),
               at_most("bytes written for each that came", 1.02, median["written"]),
               at_most("CPU seconds for a GB", 1, median["cpu"])]
    return results, targets


def many_lists(args, folder):
    """As many shards and experts as the release has, of small ones: what the lists take."""
    root = folder + "/files"
    subprocess.run([args.program, "synth", root, "--skeleton", "--like", "nano", "--layers", "93",
                    "--experts", "896"], check=True, stderr=subprocess.DEVNULL)
    nginx = Nginx(root)
    try:
        full = setup(args.program, folder + "/ours", nginx.port)
    finally:
        nginx.stop()
    peak = full["rss"] / 1e6
    return ({"op": "setup of 96 shards, 896 experts a layer", "gb":
             full["done"]["fetched_bytes"] / 1e9, "seconds": full["seconds"], "peak_mb": peak},
            at_most("MB of memory for 96 shards, 896 experts a layer", 200, peak))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        results, targets = compare(args, folder)
        result, target = many_lists(args, folder)
    show([*results, result], [*targets, target], args.json)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
