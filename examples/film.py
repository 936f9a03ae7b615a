"""Train PERDQN on LunarLander-v3 and film its best landing: ``python -m examples.film``."""

from pathlib import Path

import gymnasium as gym
import torch as th
import yaml
from PIL import Image

from sb3_per import PERDQN
from sb3_per.zoo import config_file

FILM, MODEL = Path("docs/pictures/lunarlander.gif"), Path("runs/lunarlander.zip")
SIZE, N_COLOURS, EVERY = (300, 200), 32, 4  # of the film: pixels, and every fourth frame


def train(n_timesteps: int | None = None) -> PERDQN:
    """Train with the hyperparameters of ``sb3-per train --algo per_dqn``."""
    settings = yaml.safe_load(config_file("per_dqn").read_text())["LunarLander-v3"]
    default = settings.pop("n_timesteps")
    model = PERDQN(env="LunarLander-v3", seed=0, device="cpu", **settings)
    return model.learn(n_timesteps or default, progress_bar=True)


def play(model: PERDQN, seed: int) -> tuple[float, list[Image.Image]]:
    """Return the return of an episode and its frames."""
    env = gym.make("LunarLander-v3", render_mode="rgb_array")
    obs, _ = env.reset(seed=seed)
    total, done, frames = 0.0, False, []
    while not done:
        frames.append(Image.fromarray(env.render()).resize(SIZE))
        obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
        total, done = total + reward, terminated or truncated
    return total, frames


def main(film: Path = FILM, n_timesteps: int | None = None, n_episodes: int = 10) -> None:
    th.set_num_threads(1)  # small networks gain nothing from more
    if not MODEL.exists():
        train(n_timesteps).save(MODEL)
    model = PERDQN.load(MODEL, device="cpu")
    best, frames = max((play(model, seed) for seed in range(n_episodes)), key=lambda run: run[0])
    first, *rest = [frame.quantize(N_COLOURS) for frame in (*frames[::EVERY], frames[-1])]
    pause = [80] * len(rest) + [2000]  # milliseconds
    first.save(film, save_all=True, append_images=rest, duration=pause, loop=0)
    print(f"{film}: a return of {best:.0f}, {film.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
