"""Tests with servers and several processes that take minutes on two cores; `make test` leaves them out."""

import os

import pytest

long_test = pytest.mark.skipif(
    not os.environ.get("CONSEG_LONG_TESTS"), reason="takes minutes; CONSEG_LONG_TESTS=1 runs it"
)
