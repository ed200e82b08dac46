"""python3 tools/test_header_check.py: headers that do not name what they include are found, also behind preludes."""

import pathlib
import tempfile
import unittest

import header_check
import preludes

FLAGS = ["-std=c++20"]
# Many headers that include the same, so that preludes pay, and five that lack something.
NAMES = "#pragma once\n#include <map>\n#include <memory>\n#include <string>\n#include <vector>\n"
SHARED = NAMES + "struct Shared { std::vector<std::string> names; std::map<int, std::unique_ptr<int>> numbers; };\n"
GOOD = {f"good_{i}.h": NAMES + f'#include "shared.h"\nstruct Good{i} : Shared {{ std::string name; }};\n' for i in range(6)}
BAD = {
    "no_library.h": NAMES + "struct NoLibrary { std::deque<int> numbers; };\n",
    "no_header_of_ours.h": NAMES + "struct NoHeaderOfOurs : Shared {};\n",
    "none.h": "#pragma once\nstruct None { std::vector<int> numbers; };\n",
    "by_way_of_none.h": NAMES + '#include "none.h"\n#include "late.h"\nstruct ByWay : None {};\n',
    "incomplete.h": NAMES + "struct Later;\nstruct Incomplete { ~Incomplete() {} std::unique_ptr<Later> later; };\n",
    "error.h": NAMES + '#include "good_0.h"\nint x = "text";\n',
}


class HeaderCheck(unittest.TestCase):
    def check(self, files):
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                (pathlib.Path(root) / name).write_text(text)
            errors = header_check.check(dict.fromkeys(files, FLAGS), folder, pathlib.Path(root))
            self.num_preludes = len(list(pathlib.Path(folder).iterdir()))
        self.assertEqual(set(errors), set(files))
        return {name: error for name, error in errors.items() if error}

    def test_every_header_is_found_that_does_not_stand_alone(self):
        files = GOOD | BAD | {"shared.h": SHARED, "late.h": NAMES + "struct Late {};\n"}
        errors = self.check(files)
        self.assertEqual(set(errors), set(BAD) - {"by_way_of_none.h"})  # its include is what fails
        self.assertGreater(self.num_preludes, 0)
        self.assertIn("deque", errors["no_library.h"])
        self.assertIn("Shared", errors["no_header_of_ours.h"])
        self.assertIn("incomplete type", errors["incomplete.h"])

    def test_right_headers_pass(self):
        self.assertEqual(self.check(GOOD | {"shared.h": SHARED}), {})
        self.assertGreater(self.num_preludes, 0)

    def test_a_prelude_that_does_not_compile_is_no_error_of_its_users(self):
        shared = SHARED + "struct Wrong { std::deque<int> numbers; };\n"
        files = {name: text.replace("#include <map>", "#include <map>\n#include <deque>") for name, text in GOOD.items()}
        self.assertEqual(set(self.check(files | {"shared.h": shared})), {"shared.h"})


    def test_no_header_lends_a_name_to_the_next(self):
        files = {"a.h": "#pragma once\n#include <string>\nstruct A { std::string name; };\n",
                 "b.h": "#pragma once\n#include \"c.h\"\n#include \"a.h\"\nstruct B : A {};\n",
                 "c.h": "#pragma once\nstruct C { A a; };\n",
                 "d.h": "#pragma once\n#if 0\n#include \"a.h\"\n#endif\nstruct D : A {};\n",
                 "e.h": "#pragma once\n#include \"b.h\"\nstruct E : B {};\n"}
        errors = self.check(files)
        self.assertLessEqual({"c.h", "d.h"}, set(errors))
        self.assertIn("unknown type name 'A'", errors["c.h"])
        self.assertNotIn("a.h", errors)

    def test_a_chain_is_of_headers_that_include_each_other(self):
        ours = {name: frozenset(text) for name, text in {"a": "a", "b": "ab", "c": "abc", "d": "d", "e": "ade"}.items()}
        self.assertEqual(sorted(header_check.chains(ours)), [["a", "b", "c"], ["d", "e"]])


class Preludes(unittest.TestCase):
    def test_reads_includes_of_any_compile(self):
        text = '#include <a>\n#if X\n#include <b>\n#else\n# include <c>\n#endif\n#define RUDDER_X\n#include "own.h"\n#include <d/e.hpp>  // why\n'
        self.assertEqual(preludes.library_headers([text, "#include <f>\n"]), {"<a>", "<d/e.hpp>", "<f>"})

    def test_leaves_headers_whose_includes_depend_on_macros(self):
        self.assertIsNone(preludes.library_headers(["#define NDEBUG\n#include <a>\n"]))
        self.assertIsNone(preludes.library_headers(['#if X\n#include "own.h"\n#endif\n#include <a>\n']))

    def test_a_header_gets_only_what_it_includes(self):
        libraries = {path: frozenset({"<big>"} | ({"<other>"} if i > 1 else set()))
                     for i, path in enumerate([pathlib.Path(__file__).parent / f"{n}.py" for n in
                                               ("tidy", "room_lint", "preludes", "unit_names", "clean_cache")])}
        ours = {path: frozenset({path}) for path in libraries}
        files = {"<big>": {"big": 10**7}, "<other>": {"other": 10**7}}
        chosen = preludes.Choice(libraries, ours, files).prelude_of
        for path, prelude in chosen.items():
            self.assertLessEqual(prelude, libraries[path] | ours[path] - {path})
        self.assertEqual(len(set(chosen.values())), 2)


if __name__ == "__main__":
    unittest.main()
