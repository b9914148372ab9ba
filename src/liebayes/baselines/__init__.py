"""The peers that Sec. 5.2 compares with: iVON and VOGN, in the protocol of our optimizers."""

from .ivon import IVON

__all__ = ["IVON"]
