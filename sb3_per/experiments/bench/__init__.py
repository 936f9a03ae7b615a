"""``sb3-per bench``: what prioritization costs, measured against SB3 and other libraries."""
