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
    if text == "auto":
        return get_device(text).type
    try:
        device = th.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"must be a device of torch's, got {text!r}") from error
    try:
        th.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # AssertionError: torch was built without it
        raise argparse.ArgumentTypeError(f"must be a device that is here, got {text!r}") from error
    return text
