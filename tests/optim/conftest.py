"""The tests of the Triton kernels run in processes of their own (test_gpu.py); without Triton they cannot even be read."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["compiled_kernels.py", "interpreted_*.py"]
