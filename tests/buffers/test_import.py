import subprocess
import sys

# What `sb3-per configs` imports, and more: compiling takes seconds, and says so on stderr.
IMPORT = """
from numba.core.dispatcher import Dispatcher

def refuse(*args, **kwargs):
    raise RuntimeError("compiled while importing")

Dispatcher.compile = refuse
import sb3_per.buffers.her, sb3_per.algorithms.dqn, sb3_per.saving.checkpoint
"""


def test_importing_the_package_compiles_nothing():
    subprocess.run([sys.executable, "-c", IMPORT], check=True)
