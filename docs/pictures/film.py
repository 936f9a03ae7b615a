"""Train PERDQN on DoorKey and film five episodes: ``python docs/pictures/film.py``."""

from pathlib import Path

import gymnasium as gym
import torch as th
import yaml
from minigrid.wrappers import ImgObsWrapper
from PIL import Image

from sb3_per import PERDQN
from sb3_per.zoo import config_file

ENVIRONMENT = "MiniGrid-DoorKey-5x5-v0"
FILM, MODEL = Path("docs/pictures/doorkey.gif"), Path("runs/doorkey.zip")
SIZE, N_COLOURS = (200, 200), 32  # of the film, in pixels
STEP, END = 200, 1000  # how long a step and the end of an episode are shown, in milliseconds


def make_env() -> gym.Env:
    """Return the environment with the wrappers of the YAML file."""
    env = gym.make(ENVIRONMENT, render_mode="rgb_array")
    return gym.wrappers.FlattenObservation(ImgObsWrapper(env))


def train() -> PERDQN:
    """Train with the hyperparameters of ``sb3-per train --algo per_dqn``."""
    settings = yaml.safe_load(config_file("per_dqn").read_text())[ENVIRONMENT]
    n_timesteps = settings.pop("n_timesteps")
    del settings["env_wrapper"]
    model = PERDQN(env=make_env(), seed=0, device="cpu", **settings)
    return model.learn(n_timesteps, progress_bar=True)


def play(model: PERDQN, seed: int) -> tuple[float, list[Image.Image]]:
    """Return the return of an episode and its frames."""
    env = make_env()
    obs, _ = env.reset(seed=seed)
    total, done, frames = 0.0, False, [Image.fromarray(env.render()).resize(SIZE)]
    while not done:
        obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
        frames.append(Image.fromarray(env.render()).resize(SIZE))
        total, done = total + float(reward), terminated or truncated
    return total, frames


def main() -> None:
    th.set_num_threads(1)  # small networks gain nothing from more
    if not MODEL.exists():
        train().save(MODEL)
    model = PERDQN.load(MODEL, device="cpu")
    returns, episodes = zip(*(play(model, seed) for seed in range(5)), strict=True)
    first, *rest = [frame.quantize(N_COLOURS) for frames in episodes for frame in frames]
    pauses = [pause for frames in episodes for pause in [STEP] * (len(frames) - 1) + [END]]
    first.save(FILM, save_all=True, append_images=rest, duration=pauses, loop=0)
    shown = ", ".join(f"{total:.2f}" for total in returns)
    print(f"{FILM}: returns of {shown}, {FILM.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
