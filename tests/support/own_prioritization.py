"""A prioritization of one's own that can be stored."""

from sb3_per.prioritization.proportional import Proportional


class Storable(Proportional):
    """A prioritization of one's own, with an option, that names what a file keeps."""

    def __init__(self, n_slots, *, bonus=1.0, **options):
        super().__init__(n_slots, **options)
        self.bonus = bonus

    def entries(self):
        return super().entries()

    def restore(self, slots, values, largest):
        super().restore(slots, values, largest)
