#!/usr/bin/env python3
"""nano-vllm on random weights, with and without our kernels, and a profile of the run with them.

usage: python bench.py [--device cuda|cpu] [--sequences N] [--out DIR] [--check]

It is python -m tensorferry.nanovllm.bench by the name of the guide's program; --help has the other
options. Writes profile_trace.json and profile_report.txt.
"""

import sys

from tensorferry.nanovllm.bench import main

if __name__ == "__main__":
    sys.exit(main())
