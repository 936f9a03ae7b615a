"""What prioritization costs, measured against SB3 and other libraries."""
