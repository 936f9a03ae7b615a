"""Upgrade of buffers that version 0.1.0 pickled."""

from typing import Any

from sb3_per.prioritization.pending_updates import states_of_0_1_0
from sb3_per.prioritization.sampler import PrioritizedSampler


def upgrade_buffer_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return a pickled buffer's attributes in today's form; version 0.1.0 had no sampler."""
    if "sampler" in state:
        return state
    state = dict(state)
    prioritization = state.pop("_prioritization")
    n_slots = state["buffer_size"] * state["n_envs"]
    sampler = PrioritizedSampler(
        n_slots,
        generator=state.pop("generator"),
        prioritization=lambda *_, **__: prioritization,
        weight_normalization=state.pop("_weight_normalization"),
        **state.pop("scheme")._asdict(),
    )
    sampler.pending_states[:] = states_of_0_1_0(state.pop("_draw_log").states)
    sampler.find_inserted()
    n_added = state.pop("pos") + (state["buffer_size"] if state.pop("full") else 0)
    n_new_rows = min(state.pop("_n_new_rows"), state["buffer_size"])
    return {
        **state,
        "sampler": sampler,
        "_n_added": n_added,
        "_n_handed_over": n_added - n_new_rows,
        "_device": state.pop("device"),
    }
