"""Help for tests of code that uses a pool; a public feature.

`check` asserts a pool's invariants. `run_in_virtual_time` runs a test on a clock that jumps, where a lost
wake-up fails instead of hanging; `until` waits for what other tasks do. `OpenPool` is the negative control:
it admits everybody. `FakeLlamaServer` is an upstream that does what a test's script says; what scripts are
made of is in `fake_llama_server`. Pytest finds the fixtures `slot_pool` and `fake_llama_server` by itself
(`pytest_trio_admission`).
"""

from ._check import check as check
from ._pools import OpenPool as OpenPool
from ._time import run_in_virtual_time as run_in_virtual_time, until as until
from .fake_llama_server import FakeLlamaServer as FakeLlamaServer
