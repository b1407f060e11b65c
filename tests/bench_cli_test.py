"""deltafin bench spec, prefill and context: that they run and report what they say, never how fast.
Environment as for cli_test.py."""

import json
import os
import re
import shlex
import subprocess
import unittest

PROGRAM = shlex.split(os.environ["DELTAFIN_PROGRAM"])


def run(*args, status=0):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("K3_", "DELTAFIN_ROOT"))}
    env["K3_SPINE"] = "bf16"
    done = subprocess.run(PROGRAM + ["bench", *args], env=env, capture_output=True, timeout=240)
    assert done.returncode == status, done.stderr.decode()
    return done


def report(*args):
    out = json.loads(run(*args, "--json").stdout)
    assert set(out) == {"machine", "results", "targets", "notes"}, out
    for result in out["results"]:
        assert result["seconds"] > 0, result
    return out


class Bench(unittest.TestCase):
    def test_spec_guesses_where_a_text_repeats_itself(self):
        out = report("spec", "--tokens", "64", "--seconds", "0")
        self.assertEqual([(r["op"], r["format"]) for r in out["results"]],
                         [("spec repetitive", "off"), ("spec repetitive", "auto"),
                          ("spec random", "off"), ("spec random", "auto")])
        self.assertEqual([t["target"] for t in out["targets"]], [1.5, 0.98])
        right, of = [int(w) for w in out["notes"][0].replace(":", "").split() if w.isdigit()][:2]
        self.assertGreater(right, 0)
        self.assertGreaterEqual(of, right)

    def test_prefill_counts_what_is_read(self):
        args = ("prefill", "--chunks", "1,8", "--tokens", "16", "--ram")
        least = re.search(rb"at least --ram (\d+)M", run(*args, "1M", status=1).stderr)
        out = report(*args, f"{int(least.group(1)) + 6}M")  # most of the spine is streamed
        self.assertEqual([r["positions"] for r in out["results"]], [1, 8])
        for result in out["results"]:
            self.assertGreater(result["tokens_per_s"], 0)
            self.assertGreater(result["bytes_per_token"], 0)
        # A pass of eight positions reads most weights once.
        one, eight = [r["bytes_per_token"] for r in out["results"]]
        self.assertLess(eight, one / 2)
        wrong = run("prefill", "--chunks", "100000", status=1)
        self.assertIn(b"chunks", wrong.stderr)

    def test_context_times_layers_of_both_kinds(self):
        out = report("context", "--contexts", "100,300,2000", "--tokens", "2", "--cache", "bf16")
        ops = ["context token", "context KDA layer", "context MLA layer"]
        self.assertEqual([r["op"] for r in out["results"]], ops * 3)
        self.assertIn("2000 tokens of context: the state takes", "".join(out["notes"]))
        wrong = run("context", "--contexts", "300,100", status=1)
        self.assertIn(b"ascending", wrong.stderr)

    def test_decode_refuses_budgets_that_there_are_not(self):
        wrong = run("decode", "--budgets", "3", "--only", "2,4", status=1)
        self.assertIn(b"budgets from 1 to 3, got 4", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
