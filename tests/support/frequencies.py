"""How a sampler is judged: a chi-square test on counts, with rare leaves pooled."""

import numpy as np
from scipy import stats

# One test in a million rejects a right sampler; the seeds are fixed, so none does at random.
SIGNIFICANCE = 1e-6


def chi_square_p_value(counts, probabilities):
    """
    :param counts: How often each leaf was drawn in independent draws.
    :param probabilities: The claimed chance of each leaf.
    """
    expected = probabilities * counts.sum()
    common = expected >= 10
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    if expected[-1] < 10:  # too rare a pool for the chi-square approximation
        expected[:-1] += expected[-1] / max(len(expected) - 1, 1)
        observed, expected = observed[:-1] + 0.0, expected[:-1]
        expected *= observed.sum() / expected.sum()
    if len(expected) == 1:
        return 1.0 if np.isclose(observed[0], expected[0]) else 0.0
    return stats.chisquare(observed, expected).pvalue
