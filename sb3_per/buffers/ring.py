"""How many rows a ring holds and which one is written next, from one number."""


class Ring:
    """
    SB3's ``pos`` and ``full``, which follow from one number that a single assignment changes when a
    row is complete: neither another thread nor Ctrl-C finds them at odds with each other.
    """

    buffer_size: int
    _n_added = 0

    @property
    def n_added(self) -> int:
        """How many rows were added so far; after loading, at least as many as are stored."""
        return self._n_added

    @property
    def pos(self) -> int:
        """The row that is written next."""
        return self._n_added % self.buffer_size

    @pos.setter
    def pos(self, pos: int) -> None:
        self._n_added = pos + (self.buffer_size if self.full else 0)

    @property
    def full(self) -> bool:
        """Whether all rows hold transitions."""
        return self._n_added >= self.buffer_size

    @full.setter
    def full(self, full: bool) -> None:
        self._n_added = self.pos + (self.buffer_size if full else 0)

    def size(self) -> int:
        """Return how many rows hold transitions."""
        return min(self._n_added, self.buffer_size)
