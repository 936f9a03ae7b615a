"""Devices on command lines."""

import argparse

import torch as th
from stable_baselines3.common.utils import get_device


def device_that_is_here(text: str) -> str:
    """
    A ``type`` for argparse: SB3 would take the CPU without a word where there is no GPU.

    :param text: As torch names it, or SB3's ``auto``.
    :return: The same; for ``auto`` what it stands for here.
    :raises argparse.ArgumentTypeError: for what torch does not know, or this machine does not have.
    """
    try:
        found = get_device(text)
        if text == "auto":
            return found.type
        is_here = found.type == th.device(text).type
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"must be a device of torch's, got {text!r}") from error
    if not is_here:
        raise argparse.ArgumentTypeError(f"must be a device that is here, got {text!r}")
    return text
