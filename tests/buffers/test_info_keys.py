"""Values of ``infos`` in batches, files and checkpoints, and what cannot be stored."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch as th
from builders import make_buffer
from checks import saved_and_loaded

KEYS = ["cost", "mask", "count", "lives"]


def info(step, env):
    mask = np.array([step % 2, env, 1], dtype=bool)
    return {"cost": step + env / 10, "mask": mask, "count": step, "lives": np.int8(env), "": None}


make = partial(make_buffer, size=10, info_keys=KEYS)


def add(buffer, infos):
    observations, zeros = np.zeros((buffer.n_envs, 2)), np.zeros(buffer.n_envs)
    buffer.add(observations, observations, zeros, zeros, zeros, infos)


def filled(n_rows=14, n_envs=1, **options):
    buffer = make(n_envs=n_envs, **options)
    for step in range(n_rows):
        add(buffer, [info(step, env) for env in range(n_envs)])
    return buffer


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_batch_has_the_infos_of_its_transitions(n_envs, n_steps):
    buffer = filled(n_envs=n_envs, n_steps=n_steps)  # the ring of 10 rows holds steps 4 to 13

    batch = buffer.sample(40)

    rows, envs = np.divmod(batch.slots, n_envs)
    steps = np.where(rows < 4, rows + 10, rows)
    expected = [info(step, env) for step, env in zip(steps, envs, strict=True)]
    for key in KEYS:
        values = np.array([info[key] for info in expected])
        assert batch.infos[key].dtype == th.float32
        assert batch.infos[key].shape == (40, 3 if key == "mask" else 1)
        np.testing.assert_allclose(batch.infos[key].numpy().squeeze(), values, rtol=1e-6)


@pytest.mark.parametrize("first", [0.5, 1, False])
def test_numbers_of_all_kinds_may_follow_each_other(first):
    buffer = make(info_keys=["cost"])
    for cost in (first, 0.25, 2, True):
        add(buffer, [{"cost": cost}])

    assert buffer.info_arrays["cost"][:4, 0].tolist() == [first, 0.25, 2, 1]


@pytest.mark.parametrize(
    "values",
    [{"mask": [np.ones(2, bool)] * 2}, {"cost": [[1.0]] * 2}, {"count": ["three"] * 2}],
)
def test_values_of_another_shape_change_nothing(values):
    buffer = filled(3, n_envs=2)
    ((key, (first, second)),) = values.items()

    with pytest.raises(ValueError, match=rf"infos\['{key}'\] must be numbers of shape"):
        add(buffer, [{**info(3, 0), key: first}, {**info(3, 1), key: second}])
    with pytest.raises(ValueError, match=r"must have 'cost', got .* from environment 1"):
        add(buffer, [info(3, 0), {"mask": 1}])

    assert len(buffer) == buffer.n_sampleable == 6
    assert not buffer.info_arrays["cost"][3].any()
    add(buffer, [info(3, 0), info(3, 1)])
    assert len(buffer) == 8


@pytest.mark.parametrize("value", ["a", None])
def test_values_that_are_no_numbers_are_refused(value):
    buffer = make(info_keys=["cost"])

    with pytest.raises(ValueError, match="must be numbers"):
        add(buffer, [{"cost": value}])

    assert (len(buffer), buffer.info_arrays) == (0, {})


def test_stored_infos_continue(tmp_path):
    buffer = filled(n_envs=2)

    for again in (
        saved_and_loaded(buffer, tmp_path / "buffer.npz"),
        pickle.loads(pickle.dumps(buffer)),
    ):
        expected, found = pickle.loads(pickle.dumps(buffer)).sample(8), again.sample(8)
        assert all(th.equal(expected.infos[key], found.infos[key]) for key in KEYS)
        add(again, [info(14, 0), info(14, 1)])
        with pytest.raises(ValueError, match="numbers of shape"):
            add(again, [{**info(15, env), "mask": 1} for env in range(2)])
