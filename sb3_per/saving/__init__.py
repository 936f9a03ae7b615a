"""Files: buffers without pickle, and checkpoints of whole runs."""
