#!/usr/bin/env python3
"""Setup against curl: the same nginx on loopback, the same ranges, as many connections.

    bench/hub_bench.py build/release/deltafin [--gb 4] [--jobs 8] [--rounds 3] [--dir FOLDER]

Serves a checkpoint of K3's layout whose weights are holes, so that the disk is busy with what
arrives only. Needs twice --gb of disk for a while. Prints the median of each figure, and what the
targets are.
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
        return used_by(["curl", "-s", "--http1.1", "--parallel", "--parallel-max", str(jobs),
                        "--config", config.name])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--gb", type=float, default=4)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        experts = max(16, min(896, int((args.gb * 1e9 - 3.7e9) / EXPERT)))
        root = folder + "/files"
        subprocess.run([args.program, "synth", root, "--skeleton", "--layers", "2", "--experts",
                        str(experts), "--vocab", "512"], check=True, stderr=subprocess.DEVNULL)
        shards = [(n, os.path.getsize(f"{root}/{n}")) for n in sorted(os.listdir(root))
                  if n.endswith(".safetensors")]
        total = sum(size for _, size in shards)
        nginx = Nginx(root)
        try:
            base = f"http://127.0.0.1:{nginx.port}"
            env = {**os.environ, "HF_ENDPOINT": base, "HF_TOKEN": "", "no_proxy": "127.0.0.1"}
            rounds = []
            for _ in range(args.rounds):
                os.sync()
                nowhere = curl(base + PATH, shards, args.jobs, None)
                os.makedirs(folder + "/curl")
                to_files = curl(base + PATH, shards, args.jobs, folder + "/curl")
                shutil.rmtree(folder + "/curl")
                os.sync()
                ours = used_by([args.program, "setup", "--dir", folder + "/ours", "--revision",
                                "main", "--full", "--skip-verify", "--yes", "--json", "--jobs",
                                str(args.jobs)], env=env, stdout=subprocess.PIPE)
                done = json.loads(ours["output"].splitlines()[-1])
                shutil.rmtree(folder + "/ours")
                rounds.append({
                    "curl to nowhere, GB/s": total / 1e9 / nowhere["seconds"],
                    "curl to files, GB/s": total / 1e9 / to_files["seconds"],
                    "setup, GB/s": done["fetched_bytes"] / 1e9 / done["seconds"],
                    "setup, part of curl to files (target: 0.95)":
                        done["fetched_bytes"] / done["seconds"] / (total / to_files["seconds"]),
                    "setup, CPU seconds per GB (target: below 1)": ours["cpu"] / (total / 1e9),
                    "curl to files, CPU seconds per GB": to_files["cpu"] / (total / 1e9),
                    "setup, bytes written per byte (target: 1.02)": ours["written"] / total,
                    "setup, most memory in MB": ours["rss"] / 1e6})
            print(f"{total / 1e9:.2f} GB in {len(shards)} shards, {args.jobs} connections, median "
                  f"of {args.rounds} rounds:")
            for key in rounds[0]:
                print(f"  {key}: {statistics.median(r[key] for r in rounds):.3f}")
        finally:
            nginx.stop()
        shutil.rmtree(root)

        # As many shards and experts as the release has, of small ones: what the lists take.
        subprocess.run([args.program, "synth", root, "--skeleton", "--like", "nano", "--layers",
                        "93", "--experts", "896"], check=True, stderr=subprocess.DEVNULL)
        nginx = Nginx(root)
        try:
            env["HF_ENDPOINT"] = f"http://127.0.0.1:{nginx.port}"
            full = used_by([args.program, "setup", "--dir", folder + "/ours", "--revision", "main",
                            "--full", "--skip-verify", "--yes"], env=env,
                           stderr=subprocess.DEVNULL)
            print(f"  96 shards of 896 experts, most memory in MB (target: 200): "
                  f"{full['rss'] / 1e6:.1f}")
        finally:
            nginx.stop()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    main()
