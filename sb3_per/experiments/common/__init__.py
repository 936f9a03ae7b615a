"""What the experiments share: command lines and devices."""
