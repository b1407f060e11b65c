"""What the benches written in Python print: one object like that of `deltafin bench --json`, or
lines."""

import json
import os
import pathlib
import platform
import re
import time


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return {"cpu": model.group(1) if model else "", "architecture": platform.machine(),
            "processors": len(os.sched_getaffinity(0)), "date": time.strftime("%Y-%m-%d")}


def at_most(name, limit, got):
    return {"name": name + ", at most", "target": limit, "got": got, "met": got <= limit}


def at_least(name, limit, got):
    return {"name": name + ", at least", "target": limit, "got": got, "met": got >= limit}


def show(results, targets, as_json):
    report = {"machine": machine(), "results": results, "targets": targets}
    if as_json:
        print(json.dumps(report))
        return
    print(f"{report['machine']['cpu']}, {report['machine']['processors']} processors")
    for result in results:
        values = (f"{name} {value:.4g}" for name, value in result.items() if name != "op")
        print(f"{result['op']}: {', '.join(values)}")
    for target in targets:
        print(f"{'met   ' if target['met'] else 'MISSED'} {target['name']} {target['target']}: "
              f"{target['got']:.4g}")
