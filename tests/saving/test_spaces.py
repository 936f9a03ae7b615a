"""Spaces as JSON."""

import json

import numpy as np
import pytest
from builders import BOX, DICT, IMAGE
from gymnasium import spaces

from sb3_per.saving.buffers import space_from_json, space_to_json


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
def test_space_comes_back_equal_and_in_order(space):
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
        type("MyBox", (spaces.Box,), {})(-1, 1, (2,)),
        type("Box", (spaces.Box,), {})(-1, 1, (2,)),
        spaces.Dict({"text": spaces.Text(3)}),
    ],
)
def test_other_spaces_are_refused(space):
    with pytest.raises(ValueError, match="without pickle"):
        space_to_json(space)
