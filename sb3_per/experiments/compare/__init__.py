"""``sb3-per compare``: a suite is declared as data, run cell by cell, and read into a report."""
