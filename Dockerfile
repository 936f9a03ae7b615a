# sb3-per with RL-Zoo, Ray and Atari, for all nodes of a cluster. Build it in a clone:
#
#     docker build -t sb3-per .
#     docker run --rm sb3-per sb3-per compare run smoke --engine ray
#
FROM python:3.11-slim

# Box2D, which LunarLander runs on, is compiled; rsync is what `ray up` copies files with.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential git rsync swig \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sb3-per
COPY . .
RUN pip install --no-cache-dir ".[atari,contrib,plots,ray,zoo]" --constraint constraints.txt
# Kernels are compiled here, once, instead of on each node.
ENV NUMBA_CACHE_DIR=/opt/numba OMP_NUM_THREADS=1
RUN python -c "from sb3_per import PERDQN; PERDQN('MlpPolicy', 'CartPole-v1', learning_starts=50).learn(200)"

WORKDIR /work
