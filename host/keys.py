"""Names under which Keepsake keeps things in ComfyUI's dictionaries."""

# in `transformer_options`
PROFILE = "keepsake_profile"  # the MODEL's ARProfile; also in the header of a safetensors file
RUN = "keepsake_run"  # the ForwardContext of a running take
FORWARD = "keepsake_forward"  # the Forward that a model call works on
LEVELS = "keepsake_levels"  # noise levels [F] of its frames, where each has its own; else None
CAMERA = "keepsake_camera"  # camera tokens [1, L, D] of a forward, for the blocks of a world model
ACTIONS = "keepsake_actions"  # rows of keys and mouse [B, F, 12, width] of a forward's frames
STREAMS = "keepsake_streams"  # the set of streams that have run in this call of the guider already

# in the options of a conditioning
PROMPT_START = "keepsake_prompt"  # its PromptStart; without one it begins with the take

# of wrappers and callbacks
OUTER_CALL = "keepsake_outer"
