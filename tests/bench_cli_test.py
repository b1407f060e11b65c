"""deltafin bench decode, batch, spec, prefill and context: that they run and report what they say,
never how fast. Environment as for cli_test.py."""

import json
import os
import re
import shlex
import subprocess
import tempfile
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
        out = report("spec", "--tokens", "64", "--seconds", "6")
        self.assertEqual([(r["op"], r["format"]) for r in out["results"]],
                         [("spec repetitive", "off"), ("spec repetitive", "auto"),
                          ("spec random", "off"), ("spec random", "auto")])
        self.assertEqual([t["target"] for t in out["targets"]], [1.5, 0.98])
        right, of = [int(w) for w in out["notes"][0].replace(":", "").split() if w.isdigit()][:2]
        self.assertGreater(right, 0)
        self.assertGreaterEqual(of, right)

    def test_spec_ends_after_one_pass_each_and_tells_what_it_does(self):
        done = run("spec", "--tokens", "5000", "--seconds", "0")
        self.assertEqual(re.findall(r"round 1, (\w+), (\w+): [0-9.]+ s a token, \d+ tokens\n",
                                    done.stderr.decode()),
                         [("repetitive", "off"), ("repetitive", "auto"), ("random", "off"),
                          ("random", "auto")])
        self.assertEqual(len(re.findall(r"(?m)^spec ", done.stdout.decode())), 4)

    def test_batch_lets_sequences_share_passes(self):
        out = report("batch", "--tokens", "3", "--seconds", "1")
        self.assertEqual([r["positions"] for r in out["results"]], [1, 2, 4, 8])
        self.assertEqual(out["results"][0]["ratio"], 1)
        for result in out["results"]:
            self.assertGreater(result["ratio"], 0)
        self.assertEqual([t["target"] for t in out["targets"]], [2.5])
        self.assertEqual(out["targets"][0]["got"], out["results"][2]["ratio"])

    def test_batch_ends_after_one_pass_each_and_tells_what_it_does(self):
        done = run("batch", "--tokens", "5000", "--seconds", "0")
        self.assertEqual(re.findall(r"round 1, (\d) sequences: [0-9.]+ s a pass\n",
                                    done.stderr.decode()), ["1", "2", "4", "8"])
        self.assertEqual(len(re.findall(r"(?m)^batch .* 1 rounds", done.stdout.decode())), 4)

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

    @unittest.skipIf(len(PROGRAM) > 1, "in an emulator K3's kernels take minutes")
    def test_decode_reads_what_the_plan_does_not_hold(self):
        hidden_row = 256 * 2
        with tempfile.TemporaryDirectory() as folder:
            synth = ["synth", folder, "--like", "nano", "--layers", "4", "--experts", "16",
                     "--vocab", "163840", "--no-vision"]
            subprocess.run(PROGRAM + synth, check=True, capture_output=True, timeout=240)
            out = report("decode", "--model", folder, "--budgets", "2", "--cold", "--tokens", "2")
        self.assertGreater(out["machine"]["processors"], 0)
        self.assertEqual([r["op"] for r in out["results"]], ["decode cold"] * 2)
        plans = [re.search(r"(\d+) of (\d+) bytes of the spine stay in RAM; (\d+) bytes of experts",
                           note) for note in out["notes"]]
        plans = [[int(number) for number in plan.groups()] for plan in plans if plan]
        self.assertEqual(len(plans), 2)
        for result, (resident, spine, experts) in zip(out["results"], plans):
            planned = spine - resident + experts + hidden_row
            self.assertAlmostEqual(result["bytes_per_token"] / planned, 1, delta=0.1)
            self.assertGreater(result["ratio"], 0)
        self.assertLess(plans[0][0], plans[0][1] / 2)  # the least budget streams most of it
        self.assertEqual(plans[1][0], plans[1][1])  # the largest has all of it
        targets = {t["name"]: t for t in out["targets"]}
        self.assertEqual(len(targets), 3, targets)
        efficiency = targets["decode efficiency, cold, least of 2 budgets"]
        self.assertEqual(efficiency["target"], 0.85)
        self.assertEqual(efficiency["got"], min(1, *(r["ratio"] for r in out["results"])))
        self.assertEqual(efficiency["met"], efficiency["got"] >= 0.85)

    @unittest.skipIf(len(PROGRAM) > 1, "in an emulator K3's kernels take minutes")
    def test_decode_of_a_small_model_uses_a_part_of_the_machine(self):
        # All of it in RAM: its experts are too small for the disk's rate to mean anything.
        out = report("decode", "--budgets", "2", "--only", "2", "--cold", "--tokens", "2")
        (result,) = out["results"]
        self.assertGreater(result["ratio"], 0)
        self.assertLessEqual(result["ratio"], 1.2)

    def test_decode_refuses_budgets_that_there_are_not(self):
        wrong = run("decode", "--budgets", "3", "--only", "2,4", status=1)
        self.assertIn(b"budgets from 1 to 3, got 4", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
