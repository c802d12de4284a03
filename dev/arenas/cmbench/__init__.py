"""CMBench (DeCoPrune, arXiv 2609.39096): what a continuation remembers of a context of a minute.

As the authors' public code does it (DeCoPrune/CMBench @ 4f933481): reading and checking the data,
context, condition, prompt, camera, accounting, and the inputs of their evaluator. That evaluator
itself is not public.
"""
