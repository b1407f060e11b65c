#!/usr/bin/env python3
"""Feeds check_sizes.py sources of known lengths."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import check_sizes

SOURCE = """namespace deltafin {

class Thing {
 public:
  int Inline(int x) const {
    if (x > 0) {
      return 1;
    }
    return 2;
  }
  int one_line() const { return 1; }
};

Result LongHead(const std::string& first,
                const std::string& second) {
  for (int i = 0; i < 3; ++i) {
    Use(i);
  }
}

}  // namespace deltafin
"""


class CheckSizesTest(unittest.TestCase):
    def run_on(self, text):
        """Exit status and output for a tree with one file of this text."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "src").mkdir()
            (root / "src" / "file.cc").write_text(text)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                files, bodies = check_sizes.measure(root)
                over = check_sizes.report("files", files, check_sizes.AIM_FILE,
                                          check_sizes.MAX_FILE)
                over += check_sizes.report("functions", bodies, check_sizes.AIM_FUNCTION,
                                           check_sizes.MAX_FUNCTION)
            return over, output.getvalue()

    def test_finds_members_and_heads_over_several_lines(self):
        found = list(check_sizes.functions(SOURCE.splitlines()))
        self.assertEqual(found, [(5, 6), (14, 6)])

    def test_short_is_fine(self):
        over, output = self.run_on(SOURCE)
        self.assertEqual(over, 0)
        self.assertIn("src/file.cc:14", output)

    def test_a_long_file_fails(self):
        self.assertEqual(self.run_on("int x;\n" * check_sizes.MAX_FILE)[0], 0)
        over, output = self.run_on("int x;\n" * (check_sizes.MAX_FILE + 1))
        self.assertEqual(over, 1)
        self.assertIn("TOO LONG", output)

    def test_a_long_function_fails(self):
        body = "  Use();\n" * (check_sizes.MAX_FUNCTION - 2)
        self.assertEqual(self.run_on("void F() {\n" + body + "}\n")[0], 0)
        self.assertEqual(self.run_on("void F() {\n" + body + "  Use();\n}\n")[0], 1)


if __name__ == "__main__":
    unittest.main()
