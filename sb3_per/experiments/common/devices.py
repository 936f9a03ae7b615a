"""Devices on command lines."""

import argparse

import torch as th
from stable_baselines3.common.utils import get_device


def device_that_is_here(text: str) -> str:
    """
    Return a device if this machine has it; SB3 would silently use the CPU if there is no GPU.

    :param text: torch's name of the device, or SB3's ``auto``.
    :return: The same; for ``auto``, the device that it stands for here.
    :raises argparse.ArgumentTypeError: for a device that torch does not know or this machine does
        not have.
    """
    if text == "auto":
        return get_device(text).type
    try:
        device = th.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(
            f"must be a device that torch knows, got {text!r}"
        ) from error
    try:
        th.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # AssertionError: torch was built without it
        raise argparse.ArgumentTypeError(
            f"must be a device of this machine, got {text!r}"
        ) from error
    return text
