"""The state of a ring of rows, kept in one number."""


class Ring:
    """
    Computes SB3's ``pos`` and ``full`` from one number.

    A single assignment changes this number when a row is complete. Therefore ``pos`` and ``full``
    always agree, also in another thread and after Ctrl-C.
    """

    buffer_size: int
    _n_added = 0

    @property
    def n_added(self) -> int:
        """Return how many rows were added; after loading, at least as many as are stored."""
        return self._n_added

    @property
    def pos(self) -> int:
        """Return the row that is written next."""
        return self._n_added % self.buffer_size

    @pos.setter
    def pos(self, pos: int) -> None:
        self._n_added = pos + (self.buffer_size if self.full else 0)

    @property
    def full(self) -> bool:
        """Return whether all rows hold transitions."""
        return self._n_added >= self.buffer_size

    @full.setter
    def full(self, full: bool) -> None:
        self._n_added = self.pos + (self.buffer_size if full else 0)

    def size(self) -> int:
        """Return how many rows hold transitions."""
        return min(self._n_added, self.buffer_size)
