"""The arenas in which papers measure: what reproduces their rows with our policies.

cmbench    CMBench: contexts of about a minute, and what a continuation remembers of them
vbench     VBench and VBench-Long: videos of prompts under its names, and its scores read back
study      people's choices between two takes
measures   what is computed of a take by models from local folders

flags.py   what every arena's bench is asked
graphs.py  a row: checkpoint and policy, as a graph; node_run.py runs its nodes
maker.py   what makes a row's takes; camera.py their camera; checks.py what is found before them
results.py a folder of takes that a run fills; records.py what is known of each
sizes.py   work and bytes without weights
"""
