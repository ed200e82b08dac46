#!/usr/bin/env python3
"""What glossary_check.py refuses, and what it lets pass."""

import unittest

from glossary_check import RULES, errors_of


def words(text, path="src/rudder/exec/a.h"):
    return [error.split(": ")[2].split()[0] for error in errors_of(path, text)]


class GlossaryCheck(unittest.TestCase):
    def test_places_outside_the_queue(self):
        for line in ("struct Place {", "struct KvLayerPlace {", "size_t place = 0;", "f(k_place_.stage);", "for (int p : places) {"):
            self.assertEqual(words(line), ["place"], line)
            self.assertEqual(words(line, "src/rudder/engine/bounded_queue.h"), [], line)

    def test_to_place_and_english_pass(self):
        for line in ("ops.place_rows(x);", "layout_.place(100);", "Placement placement;", "x += y;  // in place of x",
                     'fail("has no place here");', "emplace_back(std::in_place_type<int>);", "replace(a, b);"):
            self.assertEqual(words(line), [], line)

    def test_a_literal_of_several_lines_is_no_code(self):
        self.assertEqual(words('f(R"({"place":\n "place"})");\nint place;'), ["place"])

    def test_plans_that_are_no_step(self):
        for line in ("const MemoryBudget& plan,", "RUDDER_TRY(const exec::MemoryBudget plan, f());", "plan_kv_layout(spec);"):
            self.assertEqual(words(line), ["plan"], line)
        self.assertEqual(words("prints the memory plan", "docs/a.md"), ["plan"])
        self.assertEqual(words("// The attention plan: one block"), ["plan"])
        self.assertEqual(words("const StepPlan& plan, int rows"), [])

    def test_rows_drafts_and_stages(self):
        self.assertEqual(words("for (const SeqWork& row : plan.seqs)"), ["row"])
        self.assertEqual(words("int64_t most; // of decoding rows"), ["row"])
        self.assertEqual(words("[](const RequestParams& draft) {"), ["draft"])
        self.assertEqual(words("the time of each stage", "CONTRIBUTING.md"), ["stage"])

    def test_admission_relay_and_form(self):
        for word, line in (("admission", "Admission admission_;"), ("relay", "CaptureRelay captures_;"), ("form", "TapsForms taps;")):
            self.assertEqual(words(line, "src/rudder/engine/a.h"), [word], line)
        self.assertEqual(words("enum class Admission : uint8_t {", "src/rudder/sched/prompts.h"), [])
        self.assertEqual(words("float relays[4]; Forms forms; TurnForms turns;"), [])

    def test_lines_are_counted(self):
        error = next(errors_of("src/a.cpp", "int x;\n\nint place;\n"))
        self.assertTrue(error.startswith("src/a.cpp:3: `place`: "), error)

    def test_old_reasons_keep_their_words(self):
        self.assertEqual(words("the memory plan", "docs/adr/0001-a.md"), [])

    def test_rules_are_of_words_of_the_glossary(self):
        import glossary_check
        glossary = (glossary_check.ROOT / "ARCHITECTURE.md").read_text()
        for word, *_ in RULES:
            self.assertRegex(glossary, rf"(?m)^\| [^|]*\*{word}\*", word)


if __name__ == "__main__":
    unittest.main()
