"""Files that version 0.1.0 saved load, and training goes on with the batches that it sampled."""

import json

import numpy as np
import pytest
import stored_by_0_1_0
from checks import check_valid
from stable_baselines3.common.save_util import load_from_pkl
from stored_buffers import next_batches

from sb3_per import load_buffer, load_checkpoint

FOLDER = stored_by_0_1_0.FOLDER
# The files were pickled with NumPy 1.26, which had other names for its modules.
pytestmark = pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
every_prioritization = pytest.mark.parametrize("name", ["proportional", "rank"])


def assert_as_in_0_1_0(batches, name, kind):
    """The same slots; floats as closely as other processors and versions of torch round."""
    expected = json.loads(FOLDER.joinpath(f"{name}.json").read_text())[kind]
    assert [batch[0] for batch in batches] == [batch[0] for batch in expected]
    for batch, wanted in zip(batches, expected, strict=True):
        np.testing.assert_allclose(batch[1:], wanted[1:], rtol=1e-4, atol=1e-6)


@every_prioritization
def test_a_buffer_without_pickle_samples_the_same_batches(name):
    buffer = load_buffer(FOLDER / f"{name}.npz", "cpu")

    check_valid(buffer)
    assert_as_in_0_1_0(next_batches(buffer), name, "npz")


@every_prioritization
def test_a_pickled_buffer_with_new_rows_samples_the_same_batches(name):
    buffer = load_from_pkl(FOLDER / f"{name}.pkl")

    assert_as_in_0_1_0(next_batches(buffer), name, "pkl")
    check_valid(buffer)


@every_prioritization
def test_a_checkpoint_goes_on_with_the_same_batches_and_td_errors(name):
    env = stored_by_0_1_0.make_env(name)
    model = load_checkpoint(FOLDER / f"{name}.ckpt", env, "cpu")

    assert_as_in_0_1_0(stored_by_0_1_0.batches_of_training(model), name, "ckpt")


@every_prioritization
def test_a_model_and_its_pickled_buffer_go_on_with_the_same_batches_and_td_errors(name):
    model = stored_by_0_1_0.load_model(name)

    assert_as_in_0_1_0(stored_by_0_1_0.batches_of_training(model), name, "zip")
