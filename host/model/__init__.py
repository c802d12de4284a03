"""What a MODEL is: checkpoint files and their layouts, AR profiles, the backbone's geometry,
fingerprints.
"""
