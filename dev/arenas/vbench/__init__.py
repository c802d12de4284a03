"""VBench and VBench-Long: our takes under VBench's names, its command lines, and its scores beside
our speed and memory. VBench itself runs in an environment of its own, and is never imported.

suite.py    the prompts of a list: VBench's own JSON, or lines of text
names.py    what the video of a prompt is called
takes.py    the videos
calls.py    what to run in VBench's environment
scores.py   what that wrote
totals.py   VBench's totals of them
table.py    all in one table

    OUT/frames_21/ROW/videos/PROMPT-0.mp4      only videos lie there: VBench takes a folder's first
                                               name for a video's
    OUT/frames_21/ROW/PROMPT-0.json            the take's record
    OUT/frames_21/ROW/prompts.json             each video's prompt, as VBench's --prompt_file
    OUT/frames_21/ROW/scores/*_eval_results.json
"""
