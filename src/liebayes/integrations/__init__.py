"""Support for trainers of other packages. Each module needs its package; the rest of liebayes does not."""
