"""Import and export of a suite's nights in other tools' formats."""
