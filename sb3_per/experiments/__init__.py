"""Everything that measures: comparisons, benchmarks, the cliffwalk of the paper, and probes."""
