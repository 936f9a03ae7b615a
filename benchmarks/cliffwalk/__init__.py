"""The paper's Figures 1 and 2, rerun: how many updates each kind of replay needs."""
