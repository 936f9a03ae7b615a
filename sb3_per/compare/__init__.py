"""``sb3-per compare``: train variants of algorithms on tasks and seeds, and report on the runs."""
