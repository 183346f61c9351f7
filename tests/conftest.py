"""What every test needs before torch is imported."""

from __future__ import annotations

import os

# Some virtual machines announce AMX and then refuse it: the first bfloat16 product ends in an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
