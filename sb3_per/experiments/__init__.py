"""Everything that measures: comparisons, benchmarks, and the cliffwalk of the paper."""
