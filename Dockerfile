# sb3-per with RL-Zoo, Ray and Atari, for all nodes of a cluster. In a copy of the source:
#
#     docker build -t sb3-per .
#     docker run --rm --shm-size=1g sb3-per \
#         sb3-per compare run --env CartPole-v1 --algos dqn per_dqn --steps 2000 --engine ray
#
FROM python:3.11-slim

# What Ray's head node reaches the others with. On ARM add build-essential and swig: the packages with
# compiled code have wheels for x86-64, and may have none there.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client rsync \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/sb3-per
COPY . .
# boto3 is what Ray's head node starts machines of AWS with.
RUN pip install --no-cache-dir ".[atari,contrib,plots,ray,zoo]" boto3 --constraint constraints.txt

# Kernels are compiled here, once, instead of on each node. Not in the folder of the sources: Python
# would import those, and the kernels of the installed files would still be missing.
WORKDIR /work
ENV NUMBA_CACHE_DIR=/opt/numba OMP_NUM_THREADS=1
RUN python -c "from sb3_per import PERDQN; PERDQN('MlpPolicy', 'CartPole-v1', learning_starts=50).learn(200)"
