"""Classical posteriors: densities, references and the peers, for `benchmarks/posteriors.py`."""
