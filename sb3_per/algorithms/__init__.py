"""Algorithms of Stable-Baselines3 that learn from prioritized replay buffers."""
