import json

import numpy as np
import pytest
from builders import BOX, DICT, IMAGE
from gymnasium import spaces
from sb3_per.saving.spaces import space_from_json, space_to_json


class MyBox(spaces.Box):
    pass


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        IMAGE,
        spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 0.2], np.float32)),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(-(2**62) - 1, 2**62 + 1, (2, 1), np.int64),
        spaces.Discrete(5),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([[3, 4], [5, 6]]),
        spaces.MultiDiscrete([3, 4], dtype=np.int32),
        spaces.MultiBinary(4),
        spaces.MultiBinary([2, 3]),
        DICT,
        spaces.Dict([("z", spaces.Dict({"deep": BOX})), ("a", spaces.Discrete(2))]),
    ],
    ids=str,
)
def test_a_space_comes_back_from_text_equal_and_in_order(space):
    returned = space_from_json(json.loads(json.dumps(space_to_json(space))))

    assert returned == space
    assert (returned.dtype, returned.shape) == (space.dtype, space.shape)
    if isinstance(space, spaces.Dict):
        assert [*returned] == [*space]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([BOX]),
        spaces.Text(3),
        MyBox(-1, 1, (2,)),
        type("Box", (spaces.Box,), {})(-1, 1, (2,)),
        spaces.Dict({"text": spaces.Text(3)}),
    ],
)
def test_other_spaces_are_refused_with_the_ones_that_are_not(space):
    with pytest.raises(ValueError, match=r"only Box, Discrete, .* without pickle, got"):
        space_to_json(space)


def test_keys_that_are_the_same_text_are_refused():
    """Both would be stored under one name."""
    with pytest.raises(
        ValueError, match=r"keys of a Dict space must differ as text, got \[1, '1'\]"
    ):
        space_to_json(spaces.Dict([(1, BOX), ("1", BOX)]))


@pytest.mark.parametrize(
    "encoded",
    [
        None,
        {"type": "Box"},
        {"type": ["Box"]},
        {"type": "Box", "low": 0, "high": 1, "shape": [2, -1], "dtype": "float32"},
        {"type": "Box", "low": 0, "high": 1, "shape": "22", "dtype": "float32"},
        {"type": "Box", "low": 0, "high": 1, "shape": [2**23], "dtype": "float32"},
        {"type": "Box", "low": [0], "high": [[1], []], "shape": [2], "dtype": "float32"},
        {"type": "Box", "low": None, "high": {}, "shape": [2], "dtype": "float32"},
        {"type": "Box", "low": 0, "high": 1, "shape": [2], "dtype": "O"},
        {"type": "Box", "low": 0, "high": 1, "shape": [2], "dtype": "i4,f8"},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Discrete", "n": 10**30, "start": 0},
        {"type": "Discrete", "n": 3, "start": 0, "dtype": "float32"},
        {"type": "MultiDiscrete", "nvec": [[3], 2], "start": 0},
        {"type": "MultiBinary", "n": [2**20, 2**20]},
        {"type": "MultiBinary", "n": None},
        {"type": "Dict", "spaces": [["a"]]},
        {"type": "Dict", "spaces": [[["a"], {"type": "MultiBinary", "n": 2}]]},
        {"type": "Dict", "spaces": [[i, {"type": "MultiBinary", "n": 2**22}] for i in range(2)]},
    ],
)
def test_what_is_no_space_is_refused(encoded):
    # By our rules, or by those of NumPy and gymnasium.
    with pytest.raises(ValueError, match=r"stored|values to unpack|positive|inhomogeneous|shape"):
        space_from_json(encoded)
