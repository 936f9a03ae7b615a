"""Replay buffers that sample by priority."""
