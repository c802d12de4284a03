"""What a take needs of its device and what the device has: estimate, refusal, measured peaks."""
