#!/usr/bin/env python3
"""Feeds check_layers.py small trees: what is allowed passes, and each kind of violation is seen."""

import pathlib
import tempfile
import unittest

import check_layers

# Headers that exist in every tree of these tests.
HEADERS = ["include/deltafin/error.h", "src/base/check.h", "src/io/file.h", "src/device/device.h",
           "src/device/cpu/cpu_device.h", "src/store/layout.h", "src/model/decoder.h",
           "src/text/unicode.h", "src/engine/engine_impl.h", "apps/deltafin/flags.h",
           "tests/shared_data.h", "docs/stray.h"]


def violations(path, *includes):
    """The violations of a file at `path` with these #include lines."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in HEADERS + [path]:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("#pragma once\n")
        (root / path).write_text("".join(f"#include {include}\n" for include in includes))
        return check_layers.check_file(root, path)


class CheckLayersTest(unittest.TestCase):
    def allow(self, path, *includes):
        self.assertEqual(violations(path, *includes), [])

    def forbid(self, path, include, what):
        found = violations(path, "<vector>", include)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:2: "), found)
        self.assertIn(what, found[0])

    def test_downwards_is_allowed(self):
        self.allow("src/base/check.cc", '"base/check.h"', '"deltafin/error.h"', "<cstdio>")
        self.allow("src/io/file.cc", '"base/check.h"', "<sys/stat.h>", "<unistd.h>")
        self.allow("src/device/cpu/kernel.cc", '"device/device.h"', "<immintrin.h>")
        self.allow("src/store/layout.cc", '"io/file.h"', '"device/device.h"')
        self.allow("src/model/decoder.cc", '"store/layout.h"', '"device/device.h"')
        self.allow("src/engine/engine.cc", '"model/decoder.h"', '"text/unicode.h"',
                   '"device/cpu/cpu_device.h"')
        self.allow("src/text/unicode.cc", '"io/file.h"', "<boost/unordered_map.hpp>")

    def test_upwards_is_a_violation(self):
        self.forbid("src/base/check.cc", '"io/file.h"', "src/base may not include src/io")
        self.forbid("src/io/file.cc", '"store/layout.h"', "src/io may not include src/store")
        self.forbid("src/device/d.cc", '"store/layout.h"', "may not include src/store")
        self.forbid("src/store/s.cc", '"model/decoder.h"', "may not include src/model")
        self.forbid("src/model/m.cc", '"engine/engine_impl.h"', "may not include src/engine")

    def test_sideways_is_a_violation(self):
        self.forbid("src/io/file.cc", '"device/device.h"', "src/io may not include src/device")
        self.forbid("src/text/t.cc", '"store/layout.h"', "src/text may not include src/store")
        self.forbid("src/model/m.cc", '"text/unicode.h"', "src/model may not include src/text")

    def test_nothing_but_the_engine_sees_a_backend(self):
        self.forbid("src/device/device.h", '"device/cpu/cpu_device.h"', "src/device/cpu")
        self.forbid("src/model/m.cc", '"device/cpu/cpu_device.h"', "src/device/cpu")
        self.allow("src/model/m_test.cc", '"device/cpu/cpu_device.h"', "<gtest/gtest.h>")

    def test_the_public_headers_stand_alone(self):
        self.allow("include/deltafin/engine.h", '"deltafin/error.h"', "<string>")
        self.forbid("include/deltafin/engine.h", '"base/check.h"', "may not include src/base")

    def test_applications_see_the_public_headers_only(self):
        self.allow("apps/deltafin/main.cc", '"deltafin/error.h"', '"flags.h"', "<CLI/CLI.hpp>")
        self.forbid("apps/deltafin/main.cc", '"base/check.h"', "apps may not include src/base")

    def test_third_party_headers_have_one_folder(self):
        self.allow("src/io/hash.cc", "<openssl/evp.h>", "<xxhash.h>")
        self.allow("include/deltafin/json.h", "<nlohmann/json.hpp>")
        self.allow("tests/reference/r.cc", "<nlohmann/json.hpp>")
        self.forbid("src/store/s.cc", "<openssl/evp.h>", "included by src/io only")
        self.forbid("tests/x_test.cc", "<openssl/evp.h>", "included by src/io only")
        self.forbid("src/store/s_test.cc", "<fmt/format.h>", "included by src/base only")
        self.forbid("src/device/d.cc", "<immintrin.h>", "kernels are in src/device/cpu")
        self.forbid("src/base/b.cc", "<zlib.h>", "not in the table")

    def test_the_system_is_reached_through_low_folders(self):
        self.forbid("src/model/m.cc", "<unistd.h>", "does not talk to the operating system")

    def test_test_headers_stay_in_tests(self):
        self.forbid("src/io/file.cc", "<gtest/gtest.h>", "for tests and benchmarks only")
        self.forbid("src/io/file.cc", '"shared_data.h"', "not in src/ or include/")
        self.allow("src/io/file_test.cc", "<gtest/gtest.h>", '"shared_data.h"')
        self.allow("src/io/testing/fault.h", "<gtest/gtest.h>")
        self.allow("src/io/io_test_util.h", "<gtest/gtest.h>")
        self.allow("tests/end_to_end_test.cc", '"engine/engine_impl.h"', "<gtest/gtest.h>")

    def test_includes_are_written_from_the_top(self):
        self.forbid("src/io/file.cc", '"file.h"', "not in src/ or include/")
        self.forbid("src/io/file.cc", '"docs/stray.h"', "no folder of the table")

    def test_an_unknown_folder_is_a_violation(self):
        self.assertIn("not in the table", violations("src/extra/x.cc", "<vector>")[0])

    def test_commented_includes_do_not_count(self):
        self.allow("src/base/b.cc", '<vector>\n// #include "io/file.h"')


if __name__ == "__main__":
    unittest.main()
