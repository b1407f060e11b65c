"""deltafin quality as a person uses it. Environment as for cli_test.py."""

import json
import os
import shlex
import subprocess
import tempfile
import unittest

PROGRAM = shlex.split(os.environ["DELTAFIN_PROGRAM"])
SOURCE = os.environ["DELTAFIN_SOURCE_DIR"]
GOLD = json.load(open(os.path.join(SOURCE, "tests", "data", "nano", "nll.json"), encoding="utf-8"))


class Quality(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.path("text")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(GOLD["text"])

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_quality(self, *args, status=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("K3_", "DELTAFIN_ROOT"))}
        env.update({"K3_SPINE": "bf16", "TMPDIR": self.folder.name})
        done = subprocess.run(PROGRAM + ["quality", *args], env=env, capture_output=True,
                              timeout=240)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done

    def report(self, *args):
        return json.loads(self.run_quality("--text", self.text, "--json", *args).stdout)

    def test_loss_on_held_out_text_and_what_a_bf16_cache_costs(self):
        tokens = str(GOLD["n_predictions"] + 1)  # the file has more
        report = self.report("--tokens", tokens, "--cache", "bf16", "--against", "cache=f32")
        self.assertEqual(report["predictions"], GOLD["n_predictions"])
        self.assertAlmostEqual(report["mean_nll"], GOLD["mean_nll"], delta=5e-3)
        against = report["against"]
        self.assertAlmostEqual(against["mean_nll"], GOLD["mean_nll"], delta=5e-4)
        self.assertLess(0, against["mean_kl"])
        self.assertLess(against["mean_kl"], 1e-3)
        self.assertGreater(against["top1_agreement"], 0.98)
        self.assertIn("f32", against["engine"][1])
        self.assertEqual(os.listdir(self.folder.name), ["text"])  # nothing is left behind

    def test_logits_of_run_and_of_quality_are_a_reference(self):
        logits = self.path("logits")
        first = self.report("--tokens", "50", "--logits", logits)
        self.assertIsNone(first["against"])
        same = self.report("--tokens", "50", "--against", logits, "--threads", "1")
        self.assertEqual(same["against"]["max_shift"], 0)
        self.assertEqual(same["against"]["top1_agreement"], 1)
        wrong = self.run_quality("--text", self.text, "--tokens", "60", "--against", logits,
                                 status=1)
        self.assertIn(b"expected logits of the 60 tokens", wrong.stderr)

    def test_people_get_sentences(self):
        out = self.run_quality("--text", self.text, "--tokens", "40", "--against",
                               "bf16,cache=bf16").stdout.decode()
        for part in ("mean NLL", "perplexity", "KL divergence", "same most likely token",
                     "largest shift"):
            self.assertIn(part, out)

    def test_errors_say_what_was_expected(self):
        bad = self.run_quality("--text", self.text, "--against", "int3", status=1)
        self.assertIn(b"--against", bad.stderr)
        self.run_quality(status=2)
        missing = self.run_quality("--text", self.path("none"), status=1)
        self.assertIn(b"none", missing.stderr)
        answer = self.path("answer.json")
        with open(answer, "w") as file:
            json.dump({"choices": []}, file)
        other = self.run_quality("--text", self.text, "--against", answer, status=1)
        self.assertIn(b"choices[0].logprobs", other.stderr)
        words = self.path("words")
        with open(words, "w") as file:
            file.write("The capital of France is Paris.")
        with open(answer, "w") as file:
            json.dump({"choices": [{"logprobs": {"tokens": ["."], "token_logprobs": [None]}}]}, file)
        nothing = self.run_quality("--text", words, "--against", answer, status=1)
        self.assertIn(b"no log probability", nothing.stderr)


if __name__ == "__main__":
    unittest.main()
