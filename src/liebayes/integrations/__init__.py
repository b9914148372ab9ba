"""Trainers of other packages. Each module here needs its package; nothing else of liebayes does."""
