"""RL-Zoo: registration of our algorithms, their search spaces and their configuration files."""

from sb3_per.zoo.registration import (
    ALGORITHMS,
    BASES,
    config_file,
    config_folder,
    load_without_buffers,
    register,
)

__all__ = [
    "ALGORITHMS",
    "BASES",
    "config_file",
    "config_folder",
    "load_without_buffers",
    "register",
]
