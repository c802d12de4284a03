"""What a person sees of a take: plots, memory maps, messages to the web page."""
