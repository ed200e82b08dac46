"""python3 tools/test_ledger_check.py: what the check of the ledger (ledger_check.py) sees."""

import unittest

import ledger_check

HEADER = ",".join(ledger_check.HEADER) + "\n"
ROW = '2026-11-21,one H100,03b2fda with a change,"decode, N = 1",rudder bench ops,1,16,512,fp8,fp8,step,1.5e2,tok/s\n'


def errors(text):
    return ledger_check.text_errors("x.csv", text)


class LedgerCheck(unittest.TestCase):
    def test_a_whole_row_is_accepted(self):
        self.assertEqual([], errors(HEADER + ROW))

    def test_each_fault_is_named_with_its_line(self):
        for old, new, fault in [
            ("one H100", " ", "device is empty"),
            ("rudder bench ops", "", "command is empty"),
            ('"decode, N = 1"', "", "what is empty"),
            ("03b2fda with", "with", "commit"),
            ("03b2fda with a change", "", "commit"),
            ("2026-11-21", "2026-13-21", "date"),
            ("1.5e2", "150 tok/s", "value"),
            ("1.5e2", "", "value"),
            (",step,", ",", "12 columns"),
            ('"decode, N = 1"', "decode, N = 1", "14 columns"),
        ]:
            with self.subTest(new=new, fault=fault):
                found = errors(HEADER + ROW + ROW.replace(old, new))
                self.assertEqual(1, len(found), found)
                self.assertTrue(found[0].startswith("x.csv:3: "), found)
                self.assertIn(fault, found[0])

    def test_a_file_that_has_a_sweep(self):
        most = HEADER + ROW * ledger_check.MOST_ROWS
        self.assertEqual([], errors(most))
        self.assertIn("the limit is", errors(most + ROW)[0])

    def test_a_file_that_is_no_table_of_the_ledger(self):
        for text in ["", ROW, HEADER + ROW.rstrip("\n"), HEADER + ROW.replace("decode,", "decode,\n"),
                     HEADER + ROW.replace('"decode', '"dec"ode')]:
            with self.subTest(text=text):
                self.assertTrue(errors(text))


if __name__ == "__main__":
    unittest.main()
