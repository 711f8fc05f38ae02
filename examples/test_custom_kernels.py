#!/usr/bin/env python3
"""Checks, times, weighs and profiles the kernels that nano-vllm's users import.

usage: python test_custom_kernels.py [--groups correctness,speed,memory,profile] [--device cuda|cpu]

It is python -m tensorferry.nanovllm.custom_mlp by the name of the guide's program; --help has the
other options.
"""

import sys

from tensorferry.nanovllm.custom_mlp import main

if __name__ == "__main__":
    sys.exit(main())
