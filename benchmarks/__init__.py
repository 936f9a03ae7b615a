"""What the results in the documentation were measured with; not part of the package."""
