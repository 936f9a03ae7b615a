"""A prioritization of one's own that can be stored."""

from sb3_per.prioritization.proportional import Proportional


class Storable(Proportional):
    """A prioritization of one's own, with an option, that offers its state."""

    def __init__(self, n_slots, *, bonus=1.0, **options):
        super().__init__(n_slots, **options)
        self.bonus, self.n_updates = bonus, 0

    def update(self, slots, td_errors):
        super().update(slots, td_errors)
        self.n_updates += 1

    def state_dict(self):
        return {**super().state_dict(), "n_updates": self.n_updates}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.n_updates = state["n_updates"]
