"""What training leaves: a posterior over the weights of a module."""

from .combining import recentred
from .modules import unwrap
from .posterior import Posterior

__all__ = ["Posterior", "recentred", "unwrap"]
