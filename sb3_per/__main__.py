"""Run the command ``sb3-per`` as ``python -m sb3_per``."""

from __future__ import annotations

from sb3_per.cli import main

# Worker processes of SubprocVecEnv import this module again, under another name.
if __name__ == "__main__":
    main()
