"""Slots in the order of their priorities, found by rank: a sorted list in blocks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_per._utils import kernel
from sb3_per.prioritization.sum_tree import FloatArray, IntArray

# Entries of a block, and of a block when the list is laid out again: space is left for inserts.
WIDTH = 72
FILL = 54
# Neighbouring blocks whose entries are counted together: a rank is found by counting groups, then
# blocks.
GROUP = 128

N_BLOCKS, N_ENTRIES = range(2)


class Blocks(NamedTuple):
    """
    The arrays of the list. Keys are negated priorities: they ascend, and rank 0 comes first.

    Invariants: the keys of a block ascend; no key of a block is below ``firsts`` of its position,
    and none above ``firsts`` of the next one. Blocks may be empty.
    """

    keys: FloatArray  # (P, WIDTH), by block
    slots: NDArray[np.int32]  # (P, WIDTH), by block
    order: NDArray[np.int32]  # (P,): the block at each position
    positions: NDArray[np.int32]  # (P,): the position of each block
    firsts: FloatArray  # (P,), by position: a lower bound of keys, minus infinity for the first
    counts: NDArray[np.int32]  # (P,), by position: how many entries
    groups: NDArray[np.int32]  # (P / GROUP,): how many entries
    block_of: NDArray[np.int32]  # (n_slots,): 1 + the block; 0 for a slot not in the list
    state: IntArray  # blocks and entries in use


class Ranking:
    """
    Slots by descending priority: place, remove and look up by rank.

    Among equal priorities, the one placed last ranks first. A full block is split in two halves.
    When all blocks are used up, the list is laid out again in O(n_slots), at most once in about
    n_slots / 8 insertions.

    :param n_slots: Number of slots, fewer than 2^31.
    """

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._blocks = _empty(n_slots)

    def __len__(self) -> int:
        return int(self._blocks.state[N_ENTRIES])

    @property
    def largest_priority(self) -> float:
        """Return the priority of rank 0, which must exist."""
        slot = self.at(np.zeros(1, dtype=np.int64))[0]
        block = self._blocks.block_of[slot] - 1
        return float(-self._blocks.keys[block, 0])

    def place(self, slots: IntArray, priorities: FloatArray) -> None:
        """
        Move slots to the places of their priorities; if a slot occurs twice, the last one counts.

        :param slots: Slots in [0, n_slots), shape (B,).
        :param priorities: Priorities, not NaN, shape (B,); or (1,), the same for all slots.
        """
        _place(self._blocks, slots, priorities)

    def remove(self, slots: IntArray) -> None:
        """Remove slots, shape (B,), from the order; slots that are not in it are ignored."""
        _remove(self._blocks, slots)

    def at(self, ranks: IntArray) -> IntArray:
        """Return the slots at ranks, shape (B,), from 0 for the largest priority."""
        slots = np.empty(len(ranks), dtype=np.int64)
        _slots_at(self._blocks, ranks, slots)
        return slots

    def ranks(self, slots: IntArray) -> IntArray:
        """Return the ranks of slots, shape (B,), from 0; -1 for a slot that is not in the order."""
        ranks = np.empty(len(slots), dtype=np.int64)
        _ranks_of(self._blocks, slots, ranks)
        return ranks

    def count(self, slots: IntArray) -> int:
        """Return how many of the slots, shape (B,), are in the order."""
        return int(np.count_nonzero(self._blocks.block_of[slots]))

    def entries(self) -> tuple[IntArray, FloatArray]:
        """Return all slots in order, and their priorities, both of shape (len(self),)."""
        keys, slots = np.empty(len(self)), np.empty(len(self), dtype=np.int32)
        _entries(self._blocks, keys, slots)
        return slots.astype(np.int64), -keys

    def restore(self, slots: IntArray, priorities: FloatArray) -> None:
        """Replace everything by distinct slots and priorities, as ``entries`` returns them."""
        order = np.argsort(-priorities, kind="stable")  # else a damaged file could spoil the order
        self.clear()
        _lay_out(self._blocks, -priorities[order], slots[order].astype(np.int32))

    def clear(self) -> None:
        """Remove all slots."""
        self._blocks = _empty(self.n_slots)


def _empty(n_slots: int) -> Blocks:
    """Return a list without entries."""
    n_blocks = 2 * -(-n_slots // WIDTH) + 16
    firsts, state = np.zeros(n_blocks), np.zeros(2, dtype=np.int64)
    firsts[0], state[N_BLOCKS] = -np.inf, 1
    return Blocks(
        keys=np.zeros((n_blocks, WIDTH)),
        slots=np.zeros((n_blocks, WIDTH), dtype=np.int32),
        order=np.zeros(n_blocks, dtype=np.int32),
        positions=np.zeros(n_blocks, dtype=np.int32),
        firsts=firsts,
        counts=np.zeros(n_blocks, dtype=np.int32),
        groups=np.zeros(-(-n_blocks // GROUP), dtype=np.int32),
        block_of=np.zeros(n_slots, dtype=np.int32),
        state=state,
    )


@kernel
def _lay_out(blocks: Blocks, keys: FloatArray, slots: NDArray[np.int32]) -> None:
    """Fill the blocks from ordered entries."""
    n_blocks = max(-(-len(keys) // FILL), 1)
    blocks.groups[:] = 0
    for position in range(n_blocks):
        begin = position * FILL
        count = min(FILL, len(keys) - begin)
        for i in range(count):
            blocks.keys[position, i], blocks.slots[position, i] = keys[begin + i], slots[begin + i]
            blocks.block_of[slots[begin + i]] = position + 1
        blocks.order[position] = blocks.positions[position] = position
        blocks.counts[position] = count
        blocks.groups[position // GROUP] += count
        blocks.firsts[position] = keys[begin] if position > 0 else -np.inf
    blocks.state[N_BLOCKS], blocks.state[N_ENTRIES] = n_blocks, len(keys)


@kernel
def _entries(blocks: Blocks, keys: FloatArray, slots: NDArray[np.int32]) -> None:
    """Fill in all keys in order, and their slots, shape (n_entries,) each."""
    n_done = 0
    for position in range(blocks.state[N_BLOCKS]):
        block = blocks.order[position]
        for i in range(blocks.counts[position]):
            keys[n_done], slots[n_done] = blocks.keys[block, i], blocks.slots[block, i]
            n_done += 1


@kernel
def _position_for(blocks: Blocks, key: float) -> int:
    """Return the last position whose lower bound is below the key; the first one is infinite."""
    low, n = 0, blocks.state[N_BLOCKS]
    while n > 1:  # without branches, which the processor could not predict
        half = n // 2
        low += half * (blocks.firsts[low + half] < key)
        n -= half
    return int(low)


@kernel
def _split(blocks: Blocks, position: int) -> None:
    """Move the upper half of a full block into a new block behind it."""
    left, right, n_kept = blocks.order[position], blocks.state[N_BLOCKS], WIDTH // 2
    for i in range(n_kept):
        blocks.keys[right, i] = blocks.keys[left, n_kept + i]
        blocks.slots[right, i] = blocks.slots[left, n_kept + i]
        blocks.block_of[blocks.slots[right, i]] = right + 1
    for i in range(blocks.state[N_BLOCKS], position + 1, -1):
        blocks.order[i], blocks.firsts[i] = blocks.order[i - 1], blocks.firsts[i - 1]
        blocks.counts[i] = blocks.counts[i - 1]
        blocks.positions[blocks.order[i]] = i
        if i % GROUP == 0:  # its entries move from the end of one group to the start of the next
            blocks.groups[i // GROUP - 1] -= blocks.counts[i]
            blocks.groups[i // GROUP] += blocks.counts[i]
    blocks.state[N_BLOCKS] += 1
    blocks.order[position + 1], blocks.positions[right] = right, position + 1
    blocks.firsts[position + 1] = blocks.keys[right, 0]
    blocks.counts[position] = blocks.counts[position + 1] = n_kept
    if (position + 1) % GROUP == 0:
        blocks.groups[position // GROUP] -= n_kept
        blocks.groups[position // GROUP + 1] += n_kept


@kernel
def _put_in(blocks: Blocks, slot: int, key: float, position: int) -> None:
    """Insert a slot before all equal keys of the block at its position."""
    if blocks.counts[position] == WIDTH:
        if blocks.state[N_BLOCKS] == len(blocks.order):
            n = blocks.state[N_ENTRIES]
            keys, slots = np.empty(n), np.empty(n, dtype=np.int32)
            _entries(blocks, keys, slots)
            _lay_out(blocks, keys, slots)
        else:
            _split(blocks, position)
        position = _position_for(blocks, key)
    block, place = blocks.order[position], 0
    for i in range(blocks.counts[position]):  # no branch: faster than bisecting
        place += blocks.keys[block, i] < key
    for i in range(blocks.counts[position], place, -1):
        blocks.keys[block, i] = blocks.keys[block, i - 1]
        blocks.slots[block, i] = blocks.slots[block, i - 1]
    blocks.keys[block, place], blocks.slots[block, place] = key, slot
    blocks.block_of[slot] = block + 1
    blocks.counts[position] += 1
    blocks.groups[position // GROUP] += 1
    blocks.state[N_ENTRIES] += 1


@kernel
def _remove(blocks: Blocks, slots: IntArray) -> None:
    for i in range(len(slots)):
        block = blocks.block_of[slots[i]] - 1
        if block < 0:
            continue
        position, place = blocks.positions[block], 0
        while blocks.slots[block, place] != slots[i]:
            place += 1
        for k in range(place, blocks.counts[position] - 1):
            blocks.keys[block, k] = blocks.keys[block, k + 1]
            blocks.slots[block, k] = blocks.slots[block, k + 1]
        blocks.block_of[slots[i]] = 0
        blocks.counts[position] -= 1
        blocks.groups[position // GROUP] -= 1
        blocks.state[N_ENTRIES] -= 1


@kernel
def _touch(blocks: Blocks, block: int | np.int64) -> float:
    """Read a block, so that the cache misses of several blocks overlap (half the time)."""
    total = 0.0
    for i in range(0, WIDTH, 8):
        total += blocks.keys[block, i]
    for i in range(0, WIDTH, 16):
        total += blocks.slots[block, i]
    return total


@kernel
def _place(blocks: Blocks, slots: IntArray, priorities: FloatArray) -> float:
    """Return a meaningless number, which keeps the compiler from dropping the reads."""
    touched = 0.0
    for i in range(len(slots)):
        touched += _touch(blocks, max(int(blocks.block_of[slots[i]]) - 1, 0))
    _remove(blocks, slots)
    positions = np.empty(len(slots), dtype=np.int64)
    for i in range(len(slots)):
        positions[i] = _position_for(blocks, -priorities[min(i, len(priorities) - 1)])
        touched += _touch(blocks, np.int64(blocks.order[positions[i]]))
    n_blocks, has_moved = blocks.state[N_BLOCKS], False
    for i in range(len(slots)):
        key = -priorities[min(i, len(priorities) - 1)]
        if blocks.block_of[slots[i]] > 0:  # named twice
            _remove(blocks, slots[i : i + 1])
        # Splits may bring the number back to where it was before the list was laid out again.
        has_moved = has_moved or blocks.state[N_BLOCKS] != n_blocks
        if has_moved:
            positions[i] = _position_for(blocks, key)
        _put_in(blocks, slots[i], key, positions[i])
    return touched


@kernel
def _slots_at(blocks: Blocks, ranks: IntArray, slots: IntArray) -> None:
    for i in range(len(ranks)):
        # A rank may have gone since it was sampled, if another thread removes slots.
        rank, position = min(ranks[i], blocks.state[N_ENTRIES] - 1), 0
        while rank >= blocks.groups[position // GROUP]:
            rank -= blocks.groups[position // GROUP]
            position += GROUP
        while rank >= blocks.counts[position]:
            rank -= blocks.counts[position]
            position += 1
        slots[i] = blocks.slots[blocks.order[position], rank]


@kernel
def _ranks_of(blocks: Blocks, slots: IntArray, ranks: IntArray) -> None:
    for i in range(len(slots)):
        ranks[i] = -1
        block = blocks.block_of[slots[i]] - 1
        if block < 0:
            continue
        rank, position = 0, blocks.positions[block]
        while blocks.slots[block, rank] != slots[i]:
            rank += 1
        for group in range(position // GROUP):
            rank += blocks.groups[group]
        for before in range(position // GROUP * GROUP, position):
            rank += blocks.counts[before]
        ranks[i] = rank
